"""Types that the processes exchange: records, messages, files and the run config.

`config` is the run config, `rows` the dataset rows and their order, `groups` what is sampled.
No I/O and no torch, and no import of another package of Headrace. What crosses a process boundary
carries a schema version; a reader refuses other versions instead of guessing.
"""
