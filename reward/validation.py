"""Validates requests, and turns their items into work for the pool and for remote verifiers.

Only worker processes score, and read references, patterns and schemas.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from reward.remote_pool import RemoteCall
from reward.verifiers.base import Item, ItemWork, RemoteVerifier, Verifier
from reward.verifiers.registry import AnyVerifier, Registry, UnusableError, usable
from reward.workers.protocol import Request, check_for, pack_item, request_for
from services.contracts.scores import ScoreItem, Use, UseProblem
from services.http import Problem, ProblemItem, summary

CHECK_SECONDS = 5.0
"""The deadline of the check of one reference, pattern or schema."""


@dataclass(frozen=True)
class Check:
    """The check of one reference, for one use of a verifier."""

    use: int
    row: int | None
    """The index into the use's rows. None for a reference in the parameters."""
    path: str
    request: Request | RemoteCall
    """The work of the check. Its verdict is an `error` if the reference cannot be used."""


def checked_items(items: list[ScoreItem], registry: Registry) -> list[Request | RemoteCall]:
    """Return the items as work for the pools. Raises Problem (422), which names each wrong item and
    the reason."""
    problems: list[ProblemItem] = []
    requests: list[Request | RemoteCall] = []
    for index, item in enumerate(items):
        try:
            verifier, params = usable(registry, item.verifier, item.params)
            requests.append(_request(verifier, params, item))
        except UnusableError as error:
            problems += [_problem(index, item, key, message) for key, message in error.problems]
        except (ValueError, RecursionError) as error:
            problems.append(_problem(index, item, "", f"cannot be scored: {error}"))
    counts = Counter(item.id for item in items)
    for index, item in enumerate(items):
        if counts[item.id] > 1:
            problems.append(_problem(index, item, ".id", "occurs more than once in this request"))
    if problems:
        detail = f"{summary(problems)}; GET /v1/verifiers lists verifiers and their parameters"
        raise Problem(422, detail, problems)
    return requests


@dataclass(frozen=True)
class CheckedUses:
    """The problems of uses of verifiers, and the references that are still to be read."""

    problems: list[UseProblem]
    """Wrong names and parameters."""
    checks: list[Check]
    """Checks of references that remain to be done."""
    takes_any: list[int]
    """Indices of the uses that accept any reference of a row."""
    own_verifier_uses: list[int]
    """Indices of the uses whose verifier does not come with Headrace."""


def checked_uses(uses: list[Use], registry: Registry) -> CheckedUses:
    problems: list[UseProblem] = []
    checks: list[Check] = []
    takes_any: list[int] = []
    own_verifier_uses: list[int] = []
    for index, use in enumerate(uses):
        try:
            verifier, params = usable(registry, use.verifier, use.params)
            if not type(verifier).__module__.startswith("reward.verifiers."):
                own_verifier_uses.append(index)
            if isinstance(verifier, Verifier) and use.params.get(verifier.reference) is not None:
                # This reference replaces those of the rows.
                request = check_for(Item(use.verifier, "", "", None, use.params), CHECK_SECONDS)
                checks.append(Check(index, None, f"params.{verifier.reference}", request))
                takes_any.append(index)
                continue
            if _reads_none(verifier):
                takes_any.append(index)
                continue
            for number, row in enumerate(use.rows):
                item = Item(use.verifier, "", "", row.answer, use.params, row.columns)
                checks.append(
                    Check(index, number, f"rows.{number}", _check(verifier, params, item))
                )
        except UnusableError as error:
            problems += [
                UseProblem(use=index, path=key.lstrip("."), message=message)
                for key, message in error.problems
            ]
        except (ValueError, RecursionError) as error:
            problems.append(UseProblem(use=index, path="params", message=str(error)))
    return CheckedUses(problems, checks, takes_any, own_verifier_uses)


def _reads_none(verifier: AnyVerifier) -> bool:
    """Tell whether the verifier accepts any reference, by not overriding the check of its base
    class."""
    base = Verifier if isinstance(verifier, Verifier) else RemoteVerifier
    return type(verifier).check_reference is base.check_reference


def _request(verifier: AnyVerifier, params: Any, item: ScoreItem) -> Request | RemoteCall:
    """Return the item as a request. Raises ValueError or RecursionError if it cannot be sent."""
    item.id.encode()
    wire = Item(
        item.verifier,
        item.prompt,
        item.completion,
        item.answer,
        item.params,
        item.columns,
        item.prefill,
        item.truncated,
    )
    if isinstance(verifier, Verifier):
        return request_for(wire, params, verifier)
    # No service can receive text with half of a surrogate pair.
    pack_item(wire)
    return RemoteCall(verifier, wire, params)


def _check(verifier: AnyVerifier, params: Any, item: Item) -> Request | RemoteCall:
    if isinstance(verifier, Verifier):
        return check_for(item, CHECK_SECONDS)
    return RemoteCall(verifier, item, params, ItemWork.REFERENCE)


def _problem(index: int, item: ScoreItem, key: str, message: str) -> ProblemItem:
    return ProblemItem(path=f"items.{index}{key}", message=message, item=item.id[:200])
