"""What README's figures come from: `headrace bench`, one machine, one run.

What may live here: the workload (`workload`), the parts that measure (`training`, `generation`),
pure statistics (`figures`, `aims`), the report. Every figure is measured in the run that prints
it; nothing here may hold a result. No process of Headrace imports this package.
"""
