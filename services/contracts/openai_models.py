"""The names that fine-tuned models have in OpenAI's API. Pure.

A name ends with the run's id, and only the id selects the model. The other parts are for people.
"""

import re

PERSONAL = "personal"
"""OpenAI's word for the organisation of a caller who names none."""
_PART = re.compile(r"[^A-Za-z0-9._-]")
_RUN = re.compile(r"[0-9a-f]{8}")
_STEP = re.compile(r"ckpt-step-(0|[1-9][0-9]{0,8})")


def fine_tuned_name(
    base: str, organisation: str, suffix: str, run_id: str, step: int | None = None
) -> str:
    """Return `ft:BASE:ORG:SUFFIX:ID`, with `:ckpt-step-N` for the checkpoint of step N.

    `organisation` and `suffix` get a dash for each character that such a name cannot have."""
    parts = ["ft", base, _plain(organisation) or PERSONAL, _plain(suffix), run_id]
    checkpoint = [] if step is None else [f"ckpt-step-{step}"]
    return ":".join([*parts, *checkpoint])


def read_fine_tuned_name(name: str) -> tuple[str, int | None] | None:
    """Return the run's id and the checkpoint's step (None: the finished model) of a fine-tuned
    model's name. Return None for any other text. The base may have colons."""
    parts = name.split(":")
    step = _STEP.fullmatch(parts[-1])
    parts = parts[:-1] if step else parts
    if len(parts) < 5 or parts[0] != "ft" or not _RUN.fullmatch(parts[-1]):
        return None
    return parts[-1], int(step[1]) if step else None


def _plain(part: str) -> str:
    return _PART.sub("-", part)
