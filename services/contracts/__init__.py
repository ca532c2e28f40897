"""Types that the processes exchange: records, messages, files and the run config.

`config` is the run config, `rows` the dataset rows and their order, `groups` what is sampled. The
package does no I/O, and imports neither torch nor another package of Headrace. Data that crosses a
process boundary carries a schema version. A reader refuses other versions instead of guessing.
"""
