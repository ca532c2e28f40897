"""Splits a completion that thinks first into its thoughts and the answer. Linear time."""

from typing import Literal

from pydantic import Field

from reward.verifiers.base import Item, VerifierParams
from reward.verifiers.math.final_answer import tagged
from services.contracts.thoughts import read_thoughts

Part = Literal["whole", "thinking", "answer"]


class PartParams(VerifierParams):
    """The choice of the part of a completion that a verifier reads."""

    part: Part = Field(
        "whole",
        description="`thinking`: the first thought, if it ends. `answer`: the <answer> tag's "
        "content, or the text after the thoughts; a thought that has no end has no answer after "
        "it.",
    )


def part_of(item: Item, part: Part) -> str | None:
    """Return one part of the completion, without white space around it. Return None if the
    completion lacks that part."""
    if part == "whole":
        return item.completion.strip()
    thoughts = read_thoughts(item.completion, item.prefill)
    if part == "thinking" or thoughts.start is None:
        return thoughts.first if part == "thinking" else None
    answer = item.after_thoughts
    content = tagged(answer)
    return answer.strip() if content is None else content
