"""Where the models beside the policy lie."""

import re
from typing import Annotated

from pydantic import AfterValidator

from services.contracts.config.base import Section


def _known(place: str) -> str:
    if not re.fullmatch(r"same|cpu|cuda:\d{1,4}", place):
        raise ValueError(f"{place!r} is no place: there is same, cpu, and cuda:0 and so on")
    return place


Device = Annotated[str, AfterValidator(_known)]


class Placement(Section):
    """Where the models beside the policy lie. `same`: on the policy's device. `cuda:N`: on that
    one, where they also compute; of several ranks on a host the first has that one, the next the
    next. `cpu`: on the host, and on the policy's device only while they compute."""

    reference: Device = "same"
    """The reference of the KL. `cpu` copies its weights to the device once a step."""
    lagged: Device = "same"
    """The copy of proximal `lagged`. `cpu` copies its weights to the device once a step."""
    critic: Device = "same"
    """The critic with its optimizer's state. `cpu` copies its weights to the device twice a step
    and back once, the state once each way."""
