"""The `ifeval` verifier: does the completion follow the instructions of an IFEval row?"""

from typing import Any, Literal

from pydantic import Field

from headrace.nearest import did_you_mean
from reward.verifiers.base import (
    BadReferenceError,
    Item,
    Verdict,
    Verifier,
    VerifierParams,
    correct,
    failed,
    shown,
)
from reward.verifiers.tasks.instructions import INSTRUCTIONS
from services.contracts.scores import ScoreStatus


class IFEvalParams(VerifierParams):
    """How strictly an answer is read, and the credit for a part of the instructions."""

    mode: Literal["strict", "loose"] = Field(
        "strict",
        description="`strict`: the answer as it is. `loose`: also without its first or last line "
        "and without asterisks; any of these readings will do.",
    )
    credit: Literal["all", "fraction"] = Field(
        "all",
        description="`all`: 1 for following all instructions, else 0. `fraction`: the fraction of "
        "the instructions that are followed.",
    )


class IFEvalVerifier(Verifier[IFEvalParams]):
    """Checks each instruction of a row."""

    name = "ifeval"
    description = (
        "Correct when the completion follows all instructions of an IFEval row: its columns "
        "instruction_id_list and kwargs."
    )
    Params = IFEvalParams

    def check_reference(self, item: Item, params: IFEvalParams) -> None:
        _instructions(item)

    def score(self, item: Item, params: IFEvalParams) -> Verdict:
        wanted = _instructions(item)
        text = item.after_thoughts
        if not text.strip():
            return failed(ScoreStatus.NO_ANSWER, "the completion is empty")
        readings = [text] if params.mode == "strict" else loose_readings(text)
        missed = [
            name
            for name, arguments in wanted
            if not any(INSTRUCTIONS[name].follows(reading, arguments) for reading in readings)
        ]
        if not missed:
            return correct(f"follows {len(wanted)} instructions")
        detail = f"does not follow {', '.join(missed)}"
        share = 1 - len(missed) / len(wanted)
        if params.credit == "fraction" and share:
            return Verdict(ScoreStatus.PARTIAL, share, detail)
        return failed(ScoreStatus.WRONG, detail)


def loose_readings(text: str) -> list[str]:
    """Return the authors' eight readings: all lines, without the first, the last or both; with
    asterisks or without."""
    lines = text.split("\n")
    cut = [lines, lines[1:], lines[:-1], lines[1:-1]]
    texts = [text, *("\n".join(reading).strip() for reading in cut[1:])]
    return [reading for reading in texts + [t.replace("*", "") for t in texts] if reading.strip()]


def _instructions(item: Item) -> list[tuple[str, dict[str, Any]]]:
    """Return the instructions of a row, each with its arguments. Raises BadReferenceError."""
    given = item.answer if isinstance(item.answer, dict) else item.columns
    names, arguments = given.get("instruction_id_list"), given.get("kwargs")
    if not isinstance(names, list) or not names:
        raise BadReferenceError(
            f"the row has no list instruction_id_list, but {shown(names)}: upload the file with "
            "the mapping ifeval"
        )
    objects = arguments if isinstance(arguments, list) else []
    if len(objects) != len(names) or not all(isinstance(values, dict | None) for values in objects):
        raise BadReferenceError(f"kwargs of the row is no list of {len(names)} objects")
    instructions = []
    for name, values in zip(names, objects, strict=True):
        kind = INSTRUCTIONS.get(name) if isinstance(name, str) else None
        if kind is None:
            near = did_you_mean(str(name), INSTRUCTIONS)
            raise BadReferenceError(f"instruction {shown(name)} is none of IFEval's{near}")
        # Parquet has the arguments of all rows in each row, most of them null.
        needed = {key: v for key, v in (values or {}).items() if v is not None}
        for key, wanted in kind.needs.items():
            if isinstance(needed.get(key), float) and needed[key].is_integer():
                needed[key] = int(needed[key])
            if not isinstance(needed.get(key), wanted):
                raise BadReferenceError(
                    f"instruction {name} needs {key}, of type {wanted.__name__}; kwargs has "
                    f"{shown(needed.get(key))}"
                )
        instructions.append((name, needed))
    return instructions
