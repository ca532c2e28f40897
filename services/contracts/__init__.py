"""Types that the processes exchange: records, messages, files and the run config.

`config` is the run config, and `config_keys` reads one as a document. `rows` has the dataset rows
and their order, `groups` what is sampled, `redis` the address of Redis.

- Redis keeps `records`, `chains`, `events`, `evaluation` and `sessions`.
- The reward service's HTTP contract is in `scores`, `programs` and `teaching`.
- `weights`, `canary` and `experts` are about models, `devices` about GPUs.
- `preview` and `why` are answers of the API. `policy_calls` go from gateway to worker.
- `nearest`, `wording` and `wrong_values` make sentences; `strict_json` and `schema` refuse bytes.

The package does no I/O, and imports neither torch nor another package of Headrace. Data that
crosses a process boundary carries a schema version. A reader refuses other versions instead of
guessing.
"""
