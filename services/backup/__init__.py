"""Backup of a whole installation in one file, and its restore.

Imports the store, the volume and contracts. The caller starts and stops processes.
"""
