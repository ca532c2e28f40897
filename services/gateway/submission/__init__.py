"""From a submission to a run record: recipe and dataset are merged, names are resolved, the config
is parsed, and everything that can be checked before a run starts is checked.

`run_submission` leads through it. `dataset_check` and `model_check` resolve names,
`dataset_defaults` adds what datasets bring; all other modules work on the typed config.
`evaluation_submission` makes a submission of a request to evaluate a model.
"""
