"""Payloads of groups that are too large for Redis: files of the data volume, or objects in a store
such as S3. Redis has a reference in their place, and the script that takes the reference is the
only commit; so a file without one is nobody's, and is deleted.

What belongs here: where such files lie, how they are written, read and checked, and which of them
may go. Imports neither torch nor what is above `services`.
"""

from services.payloads.choice import place_of
from services.payloads.payloads import Payloads
from services.payloads.places import PayloadPlace, PlaceAway

__all__ = ["PayloadPlace", "Payloads", "PlaceAway", "place_of"]
