"""Payloads of groups that are too large for Redis: files on the data volume, or objects in a store
such as S3. Redis has a reference to the file instead. The script that takes the reference is the
only commit: a file without a reference is deleted.

This package knows where such files are, how they are written, read and checked, and which may be
deleted. It imports neither torch nor packages above `services`.
"""

from services.payloads.payloads import Payloads
from services.payloads.places import Files, PayloadPlace, PlaceAway
from services.runtime.api_key import key_for
from services.settings import Settings
from services.volume import Volume


def place_of(settings: Settings) -> PayloadPlace:
    """Return this installation's place of large payloads."""
    if settings.payloads_url is not None:
        # Imported here, because only installations with a bucket need it.
        from services.payloads.objects import Objects, bucket

        return Objects(bucket(settings.payloads_url))
    return Files(Volume(settings.data, settings.gateway_url, key_for(settings)))
