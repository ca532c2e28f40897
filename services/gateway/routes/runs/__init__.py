"""Routes about runs: submit, list, change, follow, report."""
