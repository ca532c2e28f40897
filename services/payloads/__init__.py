"""Payloads of groups that are too large for Redis: files on the data volume, or objects in a store
such as S3. Redis has a reference to the file instead. The script that takes the reference is the
only commit: a file without a reference is deleted.

This package knows where such files are, how they are written, read and checked, and which may be
deleted. It imports neither torch nor packages above `services`.
"""

from services.payloads.choice import place_of
from services.payloads.payloads import Payloads
from services.payloads.places import PayloadPlace, PlaceAway

__all__ = ["PayloadPlace", "Payloads", "PlaceAway", "place_of"]
