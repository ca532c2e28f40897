"""The devices of the models besides the policy."""

import re
from typing import Annotated

from pydantic import AfterValidator

from services.contracts.config.base import Section


def _known(place: str) -> str:
    if not re.fullmatch(r"same|cuda:\d{1,4}", place):
        raise ValueError(
            f"{place!r} is no device: choose same, or cuda:0 and so on; training.offload keeps a "
            "model in host memory while it is idle"
        )
    return place


Device = Annotated[str, AfterValidator(_known)]


class Placement(Section):
    """Devices of the models besides the policy. `same`: the policy's device. `cuda:N`: that device,
    which also computes them; of several ranks on a host the first uses that one, the second the
    next."""

    reference: Device = "same"
    """The KL's reference."""
    lagged: Device = "same"
    """The copy of proximal `lagged`."""
    critic: Device = "same"
    """The critic and its optimizer's state."""
