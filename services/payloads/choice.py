"""Chooses the place of payloads from an installation's settings."""

from services.payloads.places import Files, PayloadPlace
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
