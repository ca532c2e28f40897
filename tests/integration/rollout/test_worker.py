"""A worker as a process: its logs and events, and how it fills its slots."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from rollout.work.partial_group import begun_group
from services.contracts.events import Event
from services.contracts.groups.trajectory import decode
from services.store.keys import run_key
from tests.evaluating import request
from tests.integration.launch.conditions import eventually
from tests.integration.rollout.working import Work, working_with
from tests.integration.store.scene import RUN

CONTEXT = 64
# One prompt that leaves no token for an answer, and one that does.
LONG, SHORT = "1" * CONTEXT, "1+1="
WAITS = "which waits: File exists"
LONGEST = {"vllm": {"max_model_len": CONTEXT}}


def told(events: list[Event], kind: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.kind == kind]


def failures(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == "task failed"]


async def test_every_line_names_its_run_and_worker_and_group(working: Work, tmp_path: Path) -> None:
    # Both prompts, again and again: every second task fails.
    sampling = {"max_tokens": 2}
    async with working(tmp_path, [SHORT, LONG], {}, rollout=LONGEST, sampling=sampling) as one:
        eventually(lambda: len(failures(one.lines())) >= 2)
        (worker,) = await one.store.workers.list("default")
    lines = one.lines()

    began = next(i for i, line in enumerate(lines) if line["event"] == "starting vLLM")
    assert len(lines) > began + 3
    assert {line["worker"] for line in lines} == {worker.id}
    assert {line["run"] for line in lines[began:]} == {RUN}
    failed = failures(lines)
    assert len({line["task"] for line in failed}) == len(failed) >= 2
    assert len({line["attempt"] for line in failed}) == len(failed)
    assert all("the prompt has 65 tokens" in line["reason"] for line in failed)


async def test_a_runs_events_show_its_worker_from_start_to_stop(
    working: Work, tmp_path: Path
) -> None:
    async with working(tmp_path, [SHORT], {}) as one:
        await one.group(1)
        (worker,) = await one.store.workers.list("default")
        os.kill(worker.pid, signal.SIGTERM)
        events = await one.events(lambda found: len(told(found, "worker")) >= 4)

    joined, starting, ready, left = told(events, "worker")[:4]
    assert {said["worker"] for said in (joined, starting, ready, left)} == {worker.id}
    assert joined["state"] == "joined"
    assert joined["detail"] == f"on {worker.host}, process {worker.pid}"
    assert starting["state"] == "starting"
    assert starting["detail"] == "vLLM starts; at most 600 s (rollout.vllm.startup_seconds)"
    assert ready["state"] == "ready"
    assert ready["detail"].startswith("vLLM serves after ")
    assert left["state"] == "left"
    assert left["detail"].startswith("it was told to stop")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_another_worker_continues_what_a_worker_had_sampled_when_told_to_stop(
    working: Work, tmp_path: Path, number: signal.Signals
) -> None:
    go_on, sampled = tmp_path / "go-on", 60
    script = {"tokens_per_second": 400, "hang_after": sampled, "hang_until": str(go_on)}
    sections: dict[str, Any] = {
        "rollout": {
            "groups_in_flight": 1,
            "lease_seconds": 4.0,
            "vllm": {"max_model_len": 128, "max_num_seqs": 2},
        },
        "sampling": {"max_tokens": 100, "ignore_eos": True},
    }
    async with working(tmp_path, [SHORT], script, **sections) as one:
        first = await one.sampled(sampled)
        os.kill(first.pid, number)
        if number == signal.SIGTERM:
            begun = begun_group(decode(await one.partial(0)))
        go_on.touch()
        group = await one.group(0)
        events = await one.events(lambda found: len(told(found, "worker")) >= 3)
        ends = [said["detail"] for said in told(events, "worker") if said["state"] == "left"]
        assert await one.store.tasks.partial(RUN, 0) is None

    assert group.lengths.tolist() == [100, 100]
    assert group.header.worker != first.id
    if number == signal.SIGKILL:
        # The next worker starts again.
        assert ends == []
        assert len(group.spans) == 2
        return
    assert begun.worker == first.id
    assert sampled <= begun.tokens < 200
    assert ends[0] == (
        f"it was told to stop; other workers continue 1 group with {begun.tokens} sampled tokens"
    )
    assert begun.prompt == group.prompt_tokens.tolist()
    for i, sample in enumerate(begun.samples):
        kept = slice(100 * i, 100 * i + len(sample.token_ids))
        assert group.tokens[kept].astype("i4").tobytes() == sample.token_ids.tobytes()
        assert group.logprobs[kept].tobytes() == sample.logprobs.tobytes()


async def test_the_first_failed_start_of_vllm_is_an_event_of_the_run(
    working: Work, tmp_path: Path
) -> None:
    script = {"fail_start": "no such device"}
    async with working(tmp_path, [SHORT], script) as one:
        events = await one.events(
            lambda found: "failed" in [said["state"] for said in told(found, "state")]
        )
        (worker,) = await one.store.workers.list("default")

    (failed,) = [said for said in told(events, "state") if said["state"] == "failed"]
    assert failed["reason"].endswith("ValueError: no such device")
    (warning,) = told(events, "warning")
    assert warning["message"].startswith(
        f"worker {worker.id} tries again after a failure: vLLM ended with exit code 1: "
        "ValueError: no such device. Its log ("
    )
    # It failed twice, and one event names the start.
    assert [said["state"] for said in told(events, "worker")] == ["joined", "starting"]


async def test_a_worker_with_a_full_stream_reports_that_it_waits_for_the_learner(
    working: Work,
    tmp_path: Path,
) -> None:
    # Ten batches of 50 are admitted. With 64 samples a group has 4 kB, and 1 MiB are reserved.
    sections: dict[str, Any] = {
        "algorithm": {"prompts_per_step": 50, "samples_per_prompt": 64},
        "rollout": {"max_staleness": 9, "stream_bytes": 1 << 20},
        "sampling": {"max_tokens": 2},
    }
    async with working(tmp_path, [SHORT], {"replies": [[5]]}, **sections) as one:
        run = await one.store.runs.get(RUN)
        assert run is not None
        while True:
            states = [
                (worker.state, worker.admission_wait_seconds > 0)
                for worker in await one.store.workers.list("default")
            ]
            if states == [("waiting_admission", True)]:
                break
            await asyncio.sleep(0.05)
        flow = (await one.store.insight.situation(run)).flow
    assert 50 <= flow.waiting < 400


async def test_finished_groups_wait_in_the_worker_while_the_stream_is_full(
    working: Work, tmp_path: Path
) -> None:
    # A batch of 80 groups, 12 kB each, leaves 80 kB of the stream's 1 MiB. When it is there, about
    # 20 more are in flight.
    sections: dict[str, Any] = {
        "algorithm": {"prompts_per_step": 80, "samples_per_prompt": 16},
        "rollout": {"max_staleness": 9, "stream_bytes": 1 << 20},
        "sampling": {"max_tokens": 90},
    }
    script = {"replies": [[5] * 90], "tokens_per_second": 10_000}
    async with working(tmp_path, [SHORT], script, **sections) as one:
        redis: Any = Redis.from_url(one.stack.redis_url)
        while True:
            held = await redis.hvals(run_key(RUN, "held"))
            if held and all(record.endswith(b" waits") for record in held):
                break
            await asyncio.sleep(0.05)
        full = int(await redis.get(run_key(RUN, "bytes")) or 0)
        before = await redis.xlen(run_key(RUN, "groups"))
        assert (1 << 20) - 20_000 < full <= 1 << 20
        # They are not lost: they are completed when Redis has space.
        await redis.hset(run_key(RUN, "run"), "stream_bytes", 1 << 30)
        await one.group(before + 3)
        await redis.aclose()


async def test_a_finished_group_makes_room_while_a_long_one_is_sampled(
    working: Work, tmp_path: Path
) -> None:
    # One sample of the first two groups takes 10 s, each other sample 0.1 s.
    script = {"tokens_per_second": 10, "replies": [[5] * 100] + [[5]] * 1000}
    sections = {"rollout": {"groups_in_flight": 2}, "sampling": {"max_tokens": 100}}
    async with working(tmp_path, [SHORT], script, **sections) as one:
        await one.group(2)
        finished = await one.store.trajectories.payloads(RUN, [0, 1])

    assert finished.count(None) == 1


async def test_groups_that_wait_for_one_long_answer_make_room_for_the_next(
    working: Work, tmp_path: Path
) -> None:
    # One sample of every group takes 9 s, the other 0.1 s. 3 groups fill 4 sequences and a quarter
    # more; 3 of their sequences are left.
    script = {"tokens_per_second": 10, "replies": [[5] * 90, [5]]}
    sections = {
        "rollout": {"vllm": {"max_model_len": 128, "max_num_seqs": 4}},
        "sampling": {"max_tokens": 100},
    }
    async with working(tmp_path, [SHORT], script, **sections) as one:
        first = [await one.group(task) for task in range(3)]
        fourth = await one.group(3)

    assert fourth.header.leased_at < min(group.header.generated_at for group in first)


async def test_a_worker_holds_as_many_groups_as_vllms_cache_has_tokens_for(
    working: Work, tmp_path: Path
) -> None:
    # 3 completions of twice 30 tokens, their prompts included, and one that waits: 2 groups of 2.
    script = {"tokens_per_second": 10, "replies": [[5] * 30], "cache_tokens": 200}
    async with working(tmp_path, [SHORT], script, sampling={"max_tokens": 30}) as one:
        held: set[int] = set()
        # At least as long as a group takes.
        while await one.store.trajectories.payloads(RUN, [0]) == [None]:
            held |= {worker.groups_in_flight for worker in await one.store.workers.list("default")}
            await asyncio.sleep(0.05)

    assert max(held) == 2


async def test_a_large_group_with_its_expert_routing_waits_until_its_file_is_written(
    scoring: dict[str, str], tmp_path: Path
) -> None:
    script = {"replies": [[5, 6, 7], [8]]}
    sections = {"algorithm": {"router": {"replay": True}}}
    folder = tmp_path / "data" / "runs" / RUN
    folder.mkdir(parents=True)
    (folder / "record.json").touch()
    (folder / "payloads").touch()
    limit = scoring | {"HEADRACE_PAYLOAD_FILE_BYTES": "512"}
    async with working_with(limit, tmp_path, [SHORT], script, **sections) as one:
        await one.events(lambda found: any(WAITS in str(event.data) for event in found))
        assert await one.store.trajectories.payloads(RUN, [0]) == [None]
        (folder / "payloads").unlink()
        group = await one.group(0)
        assert [path.name.partition("-")[0] for path in folder.glob("payloads/0-*.group")] == ["0"]

    assert group.experts is not None
    assert group.routed is not None
    # In the model's only layer token t goes to t and t + 1. The last token of each answer goes
    # nowhere.
    prompt = group.prompt_tokens.tolist()
    assert sorted(group.lengths) == [1, 3]
    assert group.routed.tolist() == [length - 1 for length in group.lengths]
    assert group.experts[:, 0, 0].tolist() == [*prompt, 5, 6]
    assert group.experts[:, 0, 1].tolist() == [t + 1 for t in [*prompt, 5, 6]]


async def test_a_completed_group_contains_only_the_best_of_completions(
    working: Work, tmp_path: Path
) -> None:
    # The answers of each prompt are 1 (token 5), which is right, 11, 111 and 1111.
    script = {"replies": [[5] * length for length in (1, 2, 3, 4)]}
    sections = {"algorithm": {"best_of": {"generation_size": 4}}}
    async with working(tmp_path, [SHORT], script, **sections) as one:
        first, second = await one.group(0), await one.group(1)

    for group in (first, second):
        # The right one, and the longest of the wrong ones.
        assert group.lengths.tolist() == [1, 4]
        assert group.header.rewards == [1.0, 0.0]
        assert group.header.sampled_reward == 0.25
        assert [span[:3] for span in group.spans.tolist()] == [[0, 0, 1], [1, 0, 4]]


async def test_a_run_fails_if_its_only_vllm_never_serves_the_right_weights(
    working: Work, tmp_path: Path
) -> None:
    script = {"score_error": 1.0}
    async with working(tmp_path, [SHORT], script) as one:
        events = await one.events(
            lambda found: "failed" in [said["state"] for said in told(found, "state")]
        )
        (worker,) = await one.store.workers.list("default")

    first, second = (said["message"] for said in told(events, "warning"))
    assert first.startswith(
        f"worker {worker.id} loads its weights once more: vLLM does not serve version aaa:0: its "
        "log-probabilities of fixed sequences: they differ by "
    )
    assert second.startswith(f"worker {worker.id} tries again after a failure: vLLM could not be")
    (failed,) = [said for said in told(events, "state") if said["state"] == "failed"]
    assert "rollout.canary_limit" in failed["reason"]
    assert (worker.version, worker.groups_in_flight) == (None, 0)


async def test_evaluation_answers_each_row_once_while_training_continues(
    working: Work, tmp_path: Path
) -> None:
    """Two held-out sets. The worker's vLLM is killed while it has rows of the second set."""
    go_on = tmp_path / "go-on"
    go_on.touch()
    # Nothing is sampled until this file exists.
    script = {"replies": [[5] * 4], "hang_after": 0, "hang_until": str(go_on)}
    sections: dict[str, Any] = {
        "rollout": {"groups_in_flight": 4},
        "sampling": {"max_tokens": 4},
        "evaluation": {"dataset": "d"},
    }
    async with working(tmp_path, [SHORT] * 30, script, **sections) as one:
        await one.group(0)
        newest = await one.store.weights.newest(RUN)
        assert newest is not None
        redis: Any = Redis.from_url(one.stack.redis_url)
        token = int(await redis.hget(run_key(RUN, "run"), "fencing_token"))
        await redis.aclose()
        evaluations = one.store.evaluations
        await evaluations.let(RUN, token, 1)

        async def done(count: int) -> None:
            states: list[str] = []
            while states != ["done"] * count:
                await asyncio.sleep(0.05)
                states = [one.state for one in await evaluations.standing(RUN)]

        await evaluations.ask(RUN, token, request(newest, 30, samples=2, name="a", dataset="d"))
        await done(1)
        go_on.unlink()
        await evaluations.ask(RUN, token, request(newest, 8, samples=2, name="b", dataset="d"))
        (worker,) = await one.store.workers.list("default")
        while not (worker.evaluation_rows and worker.groups_in_flight):
            # The next heartbeat says so.
            await asyncio.sleep(0.1)
            (worker,) = await one.store.workers.list("default")
        os.kill(vllm_of(worker.pid), signal.SIGKILL)
        go_on.touch()
        await done(2)
        found = {n: await evaluations.answers(RUN, f"000000-{n}", 99) for n in "ab"}
        trained = await one.group(12)
    assert [row.row for row in found["a"]] == list(range(30))
    assert [row.row for row in found["b"]] == list(range(8))
    row = found["b"][7]
    assert (row.prompt, row.reference, row.error, len(row.samples)) == (SHORT, "1", "", 2)
    assert (row.samples[0].tokens, row.samples[0].truncated) == (4, False)
    assert trained.header.tags == [newest.tag]


async def calls(redis: Any, command: str) -> int:
    """Return how often Redis has executed a command."""
    found = await redis.info("commandstats")
    return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_a_worker_that_only_evaluates_samples_nothing_to_train_on(
    scoring: dict[str, str], tmp_path: Path
) -> None:
    only = scoring | {"HEADRACE_EVALUATION_ONLY": "true"}
    sections: dict[str, Any] = {"sampling": {"max_tokens": 1}, "evaluation": {"dataset": "d"}}
    async with working_with(only, tmp_path, [SHORT] * 8, {}, **sections) as one:
        redis: Any = Redis.from_url(one.stack.redis_url)
        evaluations = one.store.evaluations

        async def seats(count: int) -> None:
            found = -1
            while found != count:
                found = await redis.zcard(run_key(RUN, "evaluation_seats"))
                await asyncio.sleep(0.05)

        # Before there is an evaluation, it looks four times a second at two fields of the run, not
        # at its whole record.
        await seats(1)
        before, whole = await calls(redis, "evalsha"), await calls(redis, "hgetall")
        asked = before
        while asked < before + 12:
            await asyncio.sleep(0.05)
            asked = await calls(redis, "evalsha")
        assert await calls(redis, "hgetall") < whole + 4
        newest = await one.store.weights.newest(RUN)
        assert newest is not None
        token = int(await redis.hget(run_key(RUN, "run"), "fencing_token"))
        await evaluations.ask(RUN, token, request(newest, 8, samples=2, name="a", dataset="d"))
        standing = await evaluations.standing(RUN)
        while standing[0].state == "open":
            await asyncio.sleep(0.05)
            standing = await evaluations.standing(RUN)
        assert (standing[0].state, standing[0].answered) == ("done", 8)
        assert await redis.hget(run_key(RUN, "order"), "position") == b"0"
        (worker,) = await one.store.workers.list("default")
        assert worker.evaluation_only
        assert await redis.zcard(run_key(RUN, "evaluation_seats")) == 1

        # It learns that the run is over, although it leases no task.
        await one.store.runs.finish(RUN, "default", "failed", "over")
        await seats(0)
        await redis.aclose()


async def test_an_evaluation_of_a_damaged_version_ends_and_the_next_is_answered(
    working: Work, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {"sampling": {"max_tokens": 1}, "evaluation": {"dataset": "d"}}
    async with working(tmp_path, [SHORT] * 8, {}, **sections) as one:
        await one.group(0)
        newest = await one.store.weights.newest(RUN)
        assert newest is not None
        (file,) = newest.files
        damaged = file.name.replace("v000000", "v000009")
        whole = (one.stack.data / file.name).read_bytes()
        (one.stack.data / damaged).write_bytes(whole[:-1] + b"!")
        gone_wrong = replace(newest, version=9, files=[replace(file, name=damaged)])
        redis: Any = Redis.from_url(one.stack.redis_url)
        token = int(await redis.hget(run_key(RUN, "run"), "fencing_token"))
        await redis.aclose()
        evaluations = one.store.evaluations
        for name, manifest in (("lost", gone_wrong), ("next", newest)):
            await evaluations.ask(RUN, token, request(manifest, 3, 1, 0, name, dataset="d"))

        ended = await evaluations.standing(RUN)
        while len(ended) < 2 or ended[1].state == "open":
            await asyncio.sleep(0.05)
            ended = await evaluations.standing(RUN)
        await one.group(7)
    lost, following = ended
    assert (lost.id, lost.state) == ("000000-lost", "failed")
    assert lost.reason.startswith("version aaa:9 cannot be loaded any more: ")
    assert "v000009-aaa.safetensors has checksum" in lost.reason
    assert (following.id, following.state, following.answered) == ("000000-next", "done", 3)


def vllm_of(worker: int) -> int:
    """Return the process of a worker's vLLM."""
    children = Path(f"/proc/{worker}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    (pid,) = [pid for pid in pids if b"scripted_vllm" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


async def test_a_worker_leaves_a_run_that_ended_before_its_weights_could_be_loaded(
    working: Work, tmp_path: Path
) -> None:
    async with working(tmp_path, [SHORT], {}) as one:
        newest = await one.store.weights.newest(RUN)
        assert newest is not None
        (tmp_path / "data" / newest.files[0].name).unlink()
        # However fast the worker loaded the first version, the next one is missing as well.
        token = await one.store.runs.acquire(RUN, "bbb")
        file = replace(newest.files[0], name=f"runs/{RUN}/weights/v000001-bbb.safetensors")
        update = replace(newest, version=1, lineage="bbb", files=[file])
        await one.store.weights.publish(token, update, keep=64)
        tried: list[dict[str, Any]] = []
        while not tried:
            await asyncio.sleep(0.1)
            tried = [line for line in one.lines() if line["event"] == "cannot follow weights"]
        await one.store.runs.finish(RUN, "default", "cancelled", "")
        (worker,) = await one.store.workers.list("default")
        while worker.run is not None:
            # The next heartbeat says so.
            await asyncio.sleep(0.1)
            (worker,) = await one.store.workers.list("default")
    assert worker.state == "idle"
