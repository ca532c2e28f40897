"""The parts of a completion that thinks first: `<think>…</think>`, then the answer. Linear time."""

from typing import Literal

from reward.verifiers.final_answer import tagged

Part = Literal["whole", "thinking", "answer"]

_OPEN, _CLOSE = "<think>", "</think>"


def part_of(completion: str, part: Part) -> str | None:
    """One part, without white space around it.

    `thinking`: the text before the first `</think>`; None if there is none. `answer`: the
    `<answer>` tag's content, else the text after the first `</think>`, else all of it.
    """
    if part == "whole":
        return completion.strip()
    thinking, closed, rest = completion.partition(_CLOSE)
    if part == "thinking":
        return thinking.strip().removeprefix(_OPEN).strip() if closed else None
    content = tagged(completion)
    if content is not None:
        return content
    return (rest if closed else completion).strip()
