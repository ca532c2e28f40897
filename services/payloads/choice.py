"""The place that an installation's settings name."""

from services.payloads.places import Files, PayloadPlace
from services.runtime.api_key import key_for
from services.settings import Settings
from services.volume import Volume


def place_of(settings: Settings) -> PayloadPlace:
    """Where this installation keeps large payloads."""
    if settings.payloads_url is not None:
        # Loaded where it is used.
        from services.payloads.objects import Objects, bucket

        return Objects(bucket(settings.payloads_url))
    return Files(Volume(settings.data, settings.gateway_url, key_for(settings)))
