"""The devices of the models besides the policy."""

import re
from typing import Annotated

from pydantic import AfterValidator

from services.contracts.config.base import Section


def _known(place: str) -> str:
    if not re.fullmatch(r"same|cpu|cuda:\d{1,4}", place):
        raise ValueError(f"{place!r} is no device: choose same, cpu, or cuda:0 and so on")
    return place


Device = Annotated[str, AfterValidator(_known)]


class Placement(Section):
    """Devices of the models besides the policy. `same`: the policy's device. `cuda:N`: that device,
    which also computes them; of several ranks on a host the first uses that one, the second the
    next. `cpu`: in host memory, and on the policy's device only while they compute."""

    reference: Device = "same"
    """The KL's reference. `cpu` copies its weights to the device once a step."""
    lagged: Device = "same"
    """The copy of proximal `lagged`. `cpu` copies its weights to the device once a step."""
    critic: Device = "same"
    """The critic and its optimizer's state. `cpu` copies its weights to the device twice a step
    and back once, the state once each way."""
