"""The `code` verifier with its real sandbox, and programs for it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reward.verifiers.base import Item, Message, Verdict
from reward.verifiers.programs.code import CodeParams, CodeVerifier

ADD = "def add(a, b):\n    return a + b\n"


ADD_ASSERTS = ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]


HUMANEVAL = {
    "prompt": 'def poly(x):\n    return x * x\n\n\ndef root(x):\n    """The root of poly."""\n',
    "entry_point": "root",
    "test": "def check(candidate):\n    for y in (4, 9):\n        assert poly(candidate(y)) == y\n",
}


@pytest.fixture(scope="module")
def verifier() -> Iterator[CodeVerifier]:
    found = CodeVerifier()
    yield found
    found.close()


Score = Callable[..., Verdict]


@pytest.fixture
def score(verifier: CodeVerifier) -> Score:
    def scored(
        completion: str,
        answer: Any,
        prompt: str | list[Message] = "",
        columns: dict[str, Any] | None = None,
        **params: Any,
    ) -> Verdict:
        limits = {"time_limit": 1.0, "memory_mb": 128, **params}
        item = Item("code", prompt, completion, answer, {}, columns or {})
        return verifier.score(item, CodeParams(**limits))

    return scored


def outcome(verdict: Verdict) -> tuple[str, float | None]:
    return (str(verdict.status), verdict.reward)
