"""The Redis server itself: the durability that it must have, and its content as a file."""
