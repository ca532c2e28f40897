"""The names and values of other training systems, and the keys that they stand for here."""
