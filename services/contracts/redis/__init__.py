"""How Redis is named in one URL, and which versions of Redis are safe."""
