"""A whole installation in one file, and back.

Imports the store, the volume and contracts; never starts a process, which is the caller's work.
"""
