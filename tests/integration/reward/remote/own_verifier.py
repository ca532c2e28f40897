"""An own verifier of haikus, asked by URL: an item for it, and its replies."""

from collections.abc import Callable
from typing import Any

from tests.upstream import Answer


def haiku(number: int = 0, **params: Any) -> dict[str, Any]:
    return {
        "id": f"haiku-{number}",
        "verifier": "haiku",
        "prompt": [{"role": "user", "content": "A haiku, please"}],
        "completion": "An old silent pond",
        "answer": {"syllables": [5, 7, 5]},
        "params": params,
    }


def results(verdict: dict[str, Any]) -> Callable[[str, Any], Answer]:
    """Answers each item with `verdict`."""
    return lambda path, body: (
        200,
        {"results": [{**verdict, "id": item["id"]} for item in body["items"]]},
    )


PARTIAL = {
    "id": "0",
    "status": "partial",
    "reward": 0.4,
    "components": {"syllables": 0.4},
    "parts": [{"end": 5, "score": 0.4}, {"end": 9, "score": 0.0}],
    "detail": "5 of 17",
}
