"""The Redis server itself: what it must promise, and its content as a file."""
