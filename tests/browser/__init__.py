"""The page in a real browser, in front of a real gateway and Redis on seeded data."""
