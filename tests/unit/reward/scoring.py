"""Scores one completion with a built-in verifier, in this process."""

from typing import Any

from reward.verifiers.base import Item, Verdict, Verifier
from reward.verifiers.programs.code import CodeVerifier
from reward.verifiers.registry import BUILT_IN, parse_params

_KINDS: tuple[type[Verifier[Any]], ...] = (*BUILT_IN, CodeVerifier)
VERIFIERS: dict[str, Verifier[Any]] = {kind.name: kind() for kind in _KINDS}


def score(name: str, completion: str, answer: object = None, **params: object) -> Verdict:
    """Return the verdict of the verifier `name`. `prefill` and `truncated` are fields of Item;
    other keywords are parameters."""
    verifier, prefill = VERIFIERS[name], str(params.pop("prefill", ""))
    cut = bool(params.pop("truncated", False))
    item = Item(name, "", completion, answer, params, prefill=prefill, truncated=cut)
    return verifier.score(item, parse_params(verifier, params))
