"""Whole runs on an installation, from generation to training."""
