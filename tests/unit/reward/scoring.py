"""Scoring one completion with a built-in verifier, in this process."""

from typing import Any

from reward.verifiers.base import Item, Verdict, Verifier
from reward.verifiers.code import CodeVerifier
from reward.verifiers.registry import BUILT_IN, parse_params

VERIFIERS: dict[str, Verifier[Any]] = {kind.name: kind() for kind in (*BUILT_IN, CodeVerifier)}


def score(
    name: str, completion: str, answer: object = None, prefill: str = "", **params: object
) -> Verdict:
    """The verdict of the verifier `name`."""
    verifier = VERIFIERS[name]
    item = Item(name, "", completion, answer, params, prefill=prefill)
    return verifier.score(item, parse_params(verifier, params))
