"""Types that the processes exchange: records, messages, files and the run config.

No I/O and no torch, and no import of another package of Headrace. What crosses a process boundary
carries a schema version; a reader refuses other versions instead of guessing.
"""
