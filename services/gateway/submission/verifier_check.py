"""Whether the verifiers of a submission can score with the references of its datasets."""

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from typing import NamedTuple

import anyio.to_thread
import httpx

from headrace.config_keys import keys_of
from services.contracts.config import RLConfig
from services.contracts.config.rewards import RewardComponent
from services.contracts.records import DatasetRecord
from services.contracts.scores import CheckRequest, CheckResponse, Use
from services.gateway.dependencies import Dependencies
from services.gateway.reference_checks import (
    CHECK_SECONDS,
    SHOWN,
    NotChecked,
    ReferenceCheck,
    ReferenceReport,
    ask_check,
    finding,
    reason_of,
)
from services.gateway.submission.dataset_check import Datasets, SampleRow, sample_rows
from services.gateway.submission.model_check import Problems
from services.http import Problem
from services.runtime.logs import get_logger

log = get_logger(__name__)

Rewards = dict[str, list[RewardComponent]]
"""Rewards by their keys: `rewards`, `data.mix.0.rewards`, `evaluation.rewards`, …"""
WAIT_SECONDS = 5
"""How long a submission or an upload waits for all references to be read."""
WAY_OUT = (
    "Upload the rows with a mapping that names the answer (`headrace datasets add FILE --answer "
    "COLUMN`), or choose another verifier"
)


class VerifierCheck(NamedTuple):
    """The result of a check, besides problems, which go into the list of its caller."""

    warnings: list[str]
    unfinished: list[ReferenceCheck]
    """Checks of references that go on."""


class _Scored(NamedTuple):
    """A dataset that a verifier scores."""

    key: str
    record: DatasetRecord
    use: Use
    sample: list[SampleRow]
    problems: list[tuple[int, str]]
    """Rows of the sample whose reference cannot be read, and why."""
    remarks: list[str]
    """Remarks about the sample's other references."""
    has_own_verifier: bool
    """Whether the verifier does not come with Headrace."""


async def check_verifiers(
    deps: Dependencies,
    config: RLConfig,
    datasets: Datasets,
    problems: Problems,
) -> VerifierCheck:
    """Have the reward service check the verifiers' names and parameters, whether they can score
    with the references of all rows, and whether it knows the run's teacher.

    A verifier that can read no reference is a problem. One that cannot read some is a warning, and
    so is a reward service that is away or does not answer in time.
    """
    teacher = config.algorithm.teacher.endpoint if config.algorithm.teacher else None
    later = "a warning among the run's events says what is found"
    return await _check(deps, rewards_by_key(config), datasets, problems, later, teacher)


async def _check(
    deps: Dependencies,
    rewards: Rewards,
    datasets: Datasets,
    problems: Problems,
    later: str,
    teacher: str | None = None,
) -> VerifierCheck:
    """`later`: what becomes of references that are not read in time."""
    rows = await anyio.to_thread.run_sync(sample_rows, deps, datasets)
    uses: dict[str, Use] = {}
    sampled: dict[str, list[SampleRow]] = {}
    for key, components in rewards.items():
        here = [row for row in rows if scored_by(row.key, rewards) == key]
        for place, reward in enumerate(components):
            path = f"{key}.{place}"
            references = [row.reference for row in here]
            uses[path] = Use(verifier=reward.verifier, params=reward.params, rows=references)
            sampled[path] = here
    if not uses and teacher is None:
        return VerifierCheck([], [])
    try:
        request = CheckRequest(uses=list(uses.values()), teacher=teacher)
        response = await ask_check(deps.settings, deps.http, request, CHECK_SECONDS)
    except (httpx.HTTPError, ValueError) as error:
        log.warning("verifiers not checked", reason=type(error).__name__)
        return VerifierCheck(_unchecked(error), [])
    if response.teacher is not None:
        problems.append(("algorithm.teacher.endpoint", response.teacher))
    paths = list(uses)
    for problem in response.problems:
        if problem.row is None:
            problems.append((f"{paths[problem.use]}.{problem.path}", problem.message))
    return await _read(deps, list(_scored(response, uses, sampled, datasets)), problems, later)


async def check_named(deps: Dependencies, name: str) -> None:
    """Raise Problem 422 for an unknown verifier, and for one that needs parameters. Nothing is
    checked while the reward service is away."""
    problems: Problems = []
    await _check(deps, {"rewards": [RewardComponent(verifier=name)]}, {}, problems, "")
    if problems:
        detail = "; ".join(message for _, message in problems)
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, [("verifier", detail)])


async def check_upload(
    deps: Dependencies, record: DatasetRecord, rewards: list[RewardComponent]
) -> list[str]:
    """Warnings for the references of a new dataset that these rewards cannot read."""
    if not rewards:
        return []
    key, problems = "data.dataset", Problems()
    command = f"headrace datasets show {record.name} --verifier {rewards[0].verifier}"
    later = f"`{command}` says what is found"
    try:
        warnings, _ = await _check(deps, {"rewards": rewards}, {key: record}, problems, later)
    except FileNotFoundError:
        return ["its references were not read: the dataset was deleted meanwhile"]
    return [
        *(message for _, message in problems),
        *(warning.removeprefix(f"{key}: ") for warning in warnings),
    ]


def _scored(
    response: CheckResponse,
    uses: dict[str, Use],
    sampled: dict[str, list[SampleRow]],
    datasets: Datasets,
) -> Iterator[_Scored]:
    """Each dataset with each usable verifier that reads its references, once."""
    unusable = {problem.use for problem in response.problems if problem.row is None}
    for number, (path, use) in enumerate(uses.items()):
        if number in unusable or number in response.takes_any:
            continue
        wrong = {p.row: p.message for p in response.problems if p.use == number}
        there = set()
        for key in dict.fromkeys(row.key for row in sampled[path]):
            record = datasets[key]
            if record.id in there:
                continue
            there.add(record.id)
            numbers = [i for i, row in enumerate(sampled[path]) if row.key == key]
            sample = [sampled[path][i] for i in numbers]
            bad = [(sampled[path][i].index, wrong[i]) for i in numbers if i in wrong]
            remarks = [p.message for p in response.remarks if p.use == number and p.row in numbers]
            is_own = number in response.own_verifier_uses
            yield _Scored(key, record, use, sample, bad, remarks, is_own)


async def _read(
    deps: Dependencies, scored: list[_Scored], problems: Problems, later: str
) -> VerifierCheck:
    """Wait up to WAIT_SECONDS until all references are read. Add a problem for each use without a
    readable reference. Return warnings about the rest, and the checks that go on."""
    warnings: list[str] = []
    checks: dict[int, ReferenceCheck] = {}
    for number, use in enumerate(scored):
        if use.record.rows > len(use.sample):
            try:
                checks[number] = await deps.references.check(
                    use.record, use.use, keep=not use.has_own_verifier
                )
            except NotChecked as error:
                warnings.append(f"{use.key}: not all references were read: {error}")
    if checks:
        await asyncio.wait([check.task for check in checks.values()], timeout=WAIT_SECONDS)
    for number, use in enumerate(scored):
        check = checks.get(number)
        report = check.report if check and check.task.done() else _of_sample(use)
        sentence = finding(check) if check else report.unreadable and report.sentence()
        if report.none_readable:
            problems.append((use.key, f"{report.sentence()}. {WAY_OUT}"))
        elif sentence:
            warnings.append(f"{use.key}: {sentence}. Answers to these rows have no reward")
        elif check and not check.task.done():
            warnings.append(
                f"{use.key}: {check.report.checked:,} of {report.rows:,} references have been read "
                f"by verifier {use.use.verifier!r}, and the others are read now: {later}"
            )
        if not report.none_readable and (doubt := report.doubt()):
            warnings.append(f"{use.key}: {doubt}")
    return VerifierCheck(warnings, [check for check in checks.values() if not check.task.done()])


def _of_sample(scored: _Scored) -> ReferenceReport:
    """A report on the sample alone."""
    rows, bad, remarks = len(scored.sample), scored.problems, scored.remarks
    return ReferenceReport(
        scored.record.name,
        scored.use.verifier,
        scored.record.rows,
        rows,
        len(bad),
        bad[:SHOWN],
        len(remarks),
        remarks[0] if remarks else "",
    )


def rewards_by_key(config: RLConfig) -> Rewards:
    """The rewards of a run, and those that some of its datasets have for themselves."""
    mixed = keys_of("data", "mix", len(config.data.mix))[1:]
    rewards = dict(zip(mixed, [part.rewards for part in config.data.mix], strict=True))
    if evaluation := config.evaluation:
        held_out = keys_of("evaluation", "more", len(evaluation.more))
        sets = [evaluation, *evaluation.more]
        rewards |= dict(zip(held_out, [part.rewards or [] for part in sets], strict=True))
    of_datasets = {f"{section}.rewards": components for section, components in rewards.items()}
    by_key = {"rewards": config.rewards, **of_datasets}
    return {key: components for key, components in by_key.items() if components}


def scored_by(dataset: str, rewards: Rewards) -> str:
    """The key of the rewards that score the dataset which the key `dataset` names."""
    section = dataset.removesuffix(".dataset")
    inherited = ["evaluation"] if section.startswith("evaluation.") else []
    keys = [f"{key}.rewards" for key in (section, *inherited)]
    return next((key for key in keys if key in rewards), "rewards")


def _unchecked(error: Exception) -> list[str]:
    reason = reason_of(error)
    if reason == "is away":
        reason += ", and the run waits for it"
    return [
        "rewards: the verifiers and reference answers were not checked: the reward service "
        f"{reason}. What is wrong with them shows when the first answers are scored"
    ]
