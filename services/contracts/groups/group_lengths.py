"""The lengths of a group's samples, which its entry in the stream carries."""

from typing import NamedTuple


class GroupLengths(NamedTuple):
    """How much of a group is to be trained, in tokens: what the learner divides a batch by before
    it reads the group. In a stream it is `prompt:completion,completion,…`."""

    prompt: int
    completions: tuple[int, ...]
    """The completion length of each sample, or 0 for a sample outside the loss."""

    @classmethod
    def parse(cls, text: str) -> "GroupLengths":
        """The inverse of `str`. Raises ValueError."""
        prompt, _, completions = text.partition(":")
        lengths = cls(int(prompt), tuple(int(length) for length in completions.split(",")))
        if min(lengths.prompt, *lengths.completions) < 0:
            raise ValueError(f"lengths of a group are negative: {text}")
        return lengths

    def __str__(self) -> str:
        return f"{self.prompt}:{','.join(map(str, self.completions))}"
