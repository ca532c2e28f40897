"""The check of verifiers and of all references: at a submission, at an upload, and in between."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from headrace.config_keys import dataset_names
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.rewards import RewardComponent
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import append_rows
from services.gateway.dependencies import Dependencies
from services.gateway.reference_checks import COLUMN, ReferenceChecks
from services.gateway.submission import verifier_check
from services.gateway.submission.verifier_check import (
    VerifierCheck,
    check_upload,
    check_verifiers,
    rewards_by_key,
    scored_by,
)
from services.settings import Settings
from services.volume import Volume

RAW: dict[str, Any] = {"model": {"path": "m"}, "data": {"dataset": "d"}}


def scored(*rewards: str) -> RLConfig:
    """A run on one dataset with these verifiers; without any its agents send the rewards."""
    raw = RAW | {"rewards": [{"verifier": name} for name in rewards]}
    config = parse_config(raw if rewards else raw | {"rollout": {"episode": "sessions"}})
    assert isinstance(config, RLConfig)
    return config


def warnings_of(answer: httpx.Response | httpx.TransportError, *rewards: str) -> list[str]:
    """The warnings of a submission whose check ends with `answer`."""

    def answered(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.TransportError):
            raise answer
        return answer

    async def check() -> VerifierCheck:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answered)) as http:
            settings = Settings(reward_url="http://reward", data=Path("/nowhere"))
            deps = SimpleNamespace(settings=settings, http=http, volume=Path("/nowhere"))
            return await check_verifiers(cast(Dependencies, deps), scored(*rewards), {}, [])

    return asyncio.run(check()).warnings


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.ConnectError(""), "is away"),
        (httpx.ConnectTimeout(""), "is away"),
        (httpx.ReadTimeout(""), "took more than 10 s"),
        (httpx.Response(503), "answered 503"),
        (httpx.Response(200, text="<html>"), "answered with something else than a check"),
    ],
    ids=["away", "unreachable", "slow", "busy", "not the reward service"],
)
def test_a_check_that_was_not_done_is_a_warning_of_the_run(
    answer: httpx.Response | httpx.TransportError, reason: str
) -> None:
    (warning,) = warnings_of(answer, "math")
    assert warning.startswith("rewards: the verifiers and reference answers were not checked")
    assert reason in warning


def test_a_finished_or_needless_check_adds_no_warning() -> None:
    assert warnings_of(httpx.Response(200, json={"problems": []}), "math") == []
    assert warnings_of(httpx.ReadTimeout("")) == []


class RewardService:
    """Answers checks as the reward service does; a reference is readable if it is a number."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        """How many rows each request had."""
        self.goes_on = asyncio.Event()
        """The first request does not wait for it."""
        self.goes_on.set()
        self.away_after = 1 << 30
        self.readable: list[str] = []
        """Readable texts besides numbers."""
        self.words: list[str] = []
        """Readable texts with a remark."""
        self.takes_any: list[int] = []
        self.own: list[int] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.rows:
            await self.goes_on.wait()
        if len(self.rows) >= self.away_after:
            raise httpx.ConnectError("")
        uses = json.loads(request.content)["uses"]
        self.rows.append(sum(len(use["rows"]) for use in uses))
        problems = [
            {"use": number, "path": f"rows.{at}", "row": at, "message": f"{row['answer']} is none"}
            for number, use in enumerate(uses)
            for at, row in enumerate(use["rows"])
            if row["answer"] not in self.readable + self.words and not row["answer"].isdigit()
        ]
        remarks = [
            {"use": number, "path": f"rows.{at}", "row": at, "message": "are words"}
            for number, use in enumerate(uses)
            for at, row in enumerate(use["rows"])
            if row["answer"] in self.words
        ]
        reply = {
            "problems": problems,
            "remarks": remarks,
            "takes_any": self.takes_any,
            "own_verifier_uses": self.own,
        }
        return httpx.Response(200, json=reply)


class Gateway:
    """The part of a gateway that checks references."""

    def __init__(self, root: Path, service: RewardService, http: httpx.AsyncClient) -> None:
        self.root, self.service = root, service
        self.events: list[tuple[str, str, str]] = []
        self.told = asyncio.Event()
        settings = Settings(reward_url="http://reward", data=root)
        store: Any = SimpleNamespace(events=self)
        self.references = ReferenceChecks(settings, http, store)
        self.deps: Any = SimpleNamespace(
            settings=settings, http=http, volume=Volume(root), references=self.references
        )

    async def add(self, run: str, kind: str, data: dict[str, str]) -> None:
        """A run's event."""
        self.events.append((run, kind, data["message"]))
        self.told.set()

    def dataset(self, answers: list[str]) -> DatasetRecord:
        """A dataset with these references."""
        segment = append_rows(self.root, "d", [Row(prompt="x", answer=one) for one in answers])
        return DatasetRecord(id="d", name="sums", rows=len(answers), created=0, segments=[segment])

    async def submitted(self, record: DatasetRecord) -> tuple[VerifierCheck, list[tuple[str, str]]]:
        """The result of a submission on the dataset, and its problems."""
        problems: list[tuple[str, str]] = []
        datasets = {"data.dataset": record}
        found = await check_verifiers(self.deps, scored("math"), datasets, problems)
        return found, problems


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    service = RewardService()
    async with httpx.AsyncClient(transport=httpx.MockTransport(service)) as http:
        one = Gateway(tmp_path, service, http)
        yield one
        await one.references.close()


async def test_unreadable_references_of_all_rows_are_counted_once_for_a_dataset(
    gateway: Gateway,
) -> None:
    answers = ["7"] * 300
    answers[5] = answers[6] = answers[120] = answers[299] = "seven"
    record = gateway.dataset(answers)
    (warning,), unfinished = (await gateway.submitted(record))[0]
    asked = sum(gateway.service.rows)
    again = (await gateway.submitted(record))[0].warnings
    uploaded = await check_upload(gateway.deps, record, [RewardComponent(verifier="math")])

    assert warning == (
        "data.dataset: verifier 'math' cannot read 4 of 300 references of sums (row 5: seven is "
        "none; row 6: seven is none; row 120: seven is none; …). Answers to these rows have no "
        "reward"
    )
    assert (unfinished, again, uploaded) == ([], [warning], [warning[len("data.dataset: ") :]])
    assert asked == 5 + 300
    # Only the samples are read again.
    assert sum(gateway.service.rows) == asked + 5 + 5


@pytest.mark.parametrize("rows", [3, 80])
async def test_a_remark_about_most_references_is_a_warning(gateway: Gateway, rows: int) -> None:
    gateway.service.words = ["easy"]
    few = gateway.dataset(["easy"] * (rows // 2) + ["7"] * (rows - rows // 2))
    none = (await gateway.submitted(few))[0].warnings
    most = gateway.dataset(["7"] + ["easy"] * (rows - 1))
    found, problems = await gateway.submitted(most)

    assert (none, problems) == ([], [])
    assert found.warnings == [
        f"data.dataset: {rows - 1} of {rows} references of sums are words: {COLUMN}"
    ]


async def test_references_are_read_again_by_a_users_own_verifier_that_may_have_changed(
    gateway: Gateway,
) -> None:
    gateway.service.own = [0]
    record = gateway.dataset(["7"] * 99 + ["seven"])
    (before,) = (await gateway.submitted(record))[0].warnings
    gateway.service.readable = ["seven"]
    after = (await gateway.submitted(record))[0].warnings

    assert "cannot read 1 of 100" in before
    assert after == []


async def test_rows_that_are_added_later_are_read_too(gateway: Gateway) -> None:
    record = gateway.dataset(["7"] * 10)
    clean = (await gateway.submitted(record))[0].warnings
    more = append_rows(gateway.root, "d", [Row(prompt="x", answer="eight")])
    grown = record.model_copy(update={"rows": 11, "segments": [*record.segments, more]})

    assert clean == []
    assert "cannot read 1 of 11" in (await gateway.submitted(grown))[0].warnings[0]


@pytest.mark.parametrize("rows", [3, 80])
async def test_a_dataset_without_a_readable_reference_is_refused(
    gateway: Gateway, rows: int
) -> None:
    record = gateway.dataset(["seven"] * rows)
    found, ((key, problem),) = await gateway.submitted(record)

    assert (key, found.warnings) == ("data.dataset", [])
    assert f"cannot read {rows} of {rows} references of sums (row 0: seven is none" in problem
    assert "--answer COLUMN" in problem
    # A verifier may be mended.
    assert not list(gateway.root.rglob("references/*"))


async def test_a_check_that_goes_on_after_the_submission_ends_in_an_event_of_the_run(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifier_check, "WAIT_SECONDS", 0.01)
    gateway.service.goes_on.clear()
    record = gateway.dataset(["7"] * 99 + ["seven"] + ["7"] * 50)
    (warning,), unfinished = (await gateway.submitted(record))[0]
    gateway.references.tell("run", unfinished)
    gateway.service.goes_on.set()
    await gateway.told.wait()

    assert "0 of 150 references have been read by verifier 'math'" in warning
    ((run, kind, message),) = gateway.events
    assert (run, kind) == ("run", "warning")
    assert "cannot read 1 of 150 references of sums (row 99: seven is none)" in message


async def test_a_reward_service_that_goes_away_leaves_references_unread_with_a_word(
    gateway: Gateway,
) -> None:
    gateway.service.away_after = 2
    (warning,), _ = (await gateway.submitted(gateway.dataset(["7"] * 2000)))[0]

    assert "1,936 of 2,000 references of sums were not read by verifier 'math'" in warning
    assert "the reward service is away" in warning


async def test_a_verifier_without_references_is_sent_none(gateway: Gateway) -> None:
    gateway.service.takes_any = [0]
    found, problems = await gateway.submitted(gateway.dataset(["seven"] * 80))

    assert (found, problems, gateway.service.rows) == (VerifierCheck([], []), [], [5])


def test_each_dataset_is_scored_by_its_own_rewards_else_by_those_around_it() -> None:
    own = [{"verifier": "exact"}]
    mix = [{"dataset": "e"}, {"dataset": "f", "rewards": own}]
    held_out = {"dataset": "g", "rewards": own, "more": [{"dataset": "h"}]}
    raw = RAW | {"rewards": [{"verifier": "math"}], "evaluation": held_out}
    config = parse_config(raw | {"data": {"dataset": "d", "mix": mix}})
    assert isinstance(config, RLConfig)
    rewards = rewards_by_key(config)
    assert list(rewards) == ["rewards", "data.mix.1.rewards", "evaluation.rewards"]
    assert {key: scored_by(key, rewards) for key in dataset_names(raw)} == {
        "data.dataset": "rewards",
        "evaluation.dataset": "evaluation.rewards",
        "evaluation.more.0.dataset": "evaluation.rewards",
    }
    assert scored_by("data.mix.0.dataset", rewards) == "rewards"
    assert scored_by("data.mix.1.dataset", rewards) == "data.mix.1.rewards"
