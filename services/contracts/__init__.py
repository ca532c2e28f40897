"""What the processes say to each other: types only, no I/O, no torch.

A contract changes here and nowhere else. Each carries a schema version where it crosses a
process boundary; a reader that meets a newer one refuses by name instead of guessing.
"""
