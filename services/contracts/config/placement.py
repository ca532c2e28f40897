"""The devices of the models besides the policy."""

import re
from typing import Annotated

from pydantic import AfterValidator

from services.contracts.config.base import Section


def _known(place: str) -> str:
    if not re.fullmatch(r"same|cuda:[0-9]{1,4}", place):
        raise ValueError(
            f"{place!r} is no device: choose same, or cuda:0 and so on; training.offload keeps a "
            "model in host memory while it is idle"
        )
    return place


Device = Annotated[str, AfterValidator(_known)]


class Placement(Section):
    """The device of each."""

    reference: Device = "same"
    """Device of the reference model, which the KL term compares the policy with."""
    lagged: Device = "same"
    """Device of the lagged copy of the policy (`algorithm.proximal` of type `lagged`)."""
    critic: Device = "same"
    """Device of the critic and of its optimizer's state."""
    teacher: Device = "same"
    """Device of the teacher."""
