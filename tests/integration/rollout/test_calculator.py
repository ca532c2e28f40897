"""The calculator episode in a worker: the requests to the server, and the completed groups with
their sampling masks."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.integration.rollout.working import Work

# The scratch model's alphabet is 0123456789+-*/=() and a blank, from token 4 on.
END = 2


def tokens(text: str) -> list[int]:
    return [4 + "0123456789+-*/=() ".index(character) for character in text]


EPISODE = {"type": "calculator", "start": "(", "end": "=", "output_start": "", "output_end": ")"}
# Two answers that call, what they would say without a result, and what they say after it.
REPLIES = [tokens("1(2+3=77"), tokens("(2*3=77"), [*tokens("+"), END], [*tokens("+"), END]]
SECTIONS: dict[str, Any] = {
    "rollout": {"episode": EPISODE, "groups_in_flight": 1},
    "sampling": {"max_tokens": 16},
}


async def test_the_server_stops_at_the_call_and_the_group_has_the_result(
    working: Work, tmp_path: Path
) -> None:
    async with working(tmp_path, ["1+1"], {"replies": REPLIES}, **SECTIONS) as one:
        group = await one.group(0)

    first, second = [*tokens("1(2+3=5)+"), END], [*tokens("(2*3=6)+"), END]
    assert group.lengths.tolist() == [10, 9]
    assert group.tokens.tolist() == first + second
    mask = [True] * 6 + [False] * 2 + [True] * 2 + [True] * 5 + [False] * 2 + [True] * 2
    assert group.loss_mask.tolist() == mask
    assert ((group.logprobs == 0) == ~group.loss_mask).all()
    assert group.spans[:, :3].tolist() == [[0, 0, 6], [0, 8, 10], [1, 0, 5], [1, 7, 9]]
    assert group.header.finish_reasons == ["stop", "stop"]


async def test_a_group_holds_the_sampling_mask_of_each_token(working: Work, tmp_path: Path) -> None:
    sections = SECTIONS | {"sampling": {"max_tokens": 16, "top_k": 3}}
    async with working(tmp_path, ["1+1"], {"replies": REPLIES}, **sections) as one:
        group = await one.group(0)

    assert group.sampling_mask is not None
    # The stand-in chooses from a token and the two after it, of its 20.
    expected = [
        sorted((token + i) % 20 for i in range(3)) if sampled else []
        for token, sampled in zip(group.tokens.tolist(), group.loss_mask.tolist(), strict=True)
    ]
    assert [group.sampling_mask.cut(i, i + 1).ids.tolist() for i in range(19)] == expected
    assert group.logprobs[group.loss_mask] == pytest.approx(-math.log(3))
