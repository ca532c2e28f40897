"""Redis loses writes that it had acknowledged: that is noticed, said, and mended."""

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from services.contracts.records import ApiKeyRecord, RunRecord
from services.contracts.rows.task import TaskPosition
from services.contracts.run_edits import RunEdit
from services.recovery.key_copies import KeyCopy, keep_key, mark_revoked, revoke_again
from services.recovery.lost_writes import compare, lost_commit, require_complete
from services.recovery.record_copies import Commit, commits, keep_run, kept_datasets, newest_commit
from services.recovery.recover import align, still_open
from services.settings import Settings
from services.store import LostWrites
from services.volume import Volume
from tests.integration.store.scene import RUN, record
from tests.security.redis_losses import begun, commit, recover_losses, server, trained


async def test_a_cut_file_is_noticed_by_its_commits_and_the_run_goes_on_from_its_newest_checkpoint(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await begun(scene, data, eta=5)
            copied = await commit(scene, data, 1, "")
            copied = await commit(scene, data, 2, copied)
            await scene.leased(2)
            size = one.file.stat().st_size
            await scene.store.tasks.drop(RUN, (await scene.leased(1))[0].attempt, "too_long", "é")
            copied = await commit(scene, data, 3, copied)
            copied = await commit(scene, data, 4, copied)
            await require_complete(scene.store, data, one.url)
        one.kill()
        os.truncate(one.file, size + 20)
        one.start()

        async with one.scene() as scene:
            store = scene.store
            with pytest.raises(LostWrites, match=r"(?s)step 4.*up to step 2.*headrace recover"):
                await require_complete(store, data, one.url)
            behind = await store.runs.get(RUN)
            assert behind is not None
            assert "step 4" in str(lost_commit(data, behind, newest_commit(data, RUN), one.url))

            done = await recover_losses(store, data)

            assert "goes on from step 4" in done[0]
            await require_complete(store, data, one.url)
            found = await store.ledger.audit(RUN)
            assert (found.trained, found.dropped, found.lost, found.duplicated) == (
                8,
                {"too_long": 1},
                0,
                0,
            )
            assert found.problems == []
            assert "step 4" in found.unknown[0]
            assert found.in_flight == found.tasks - 9
            # It goes on: each task once.
            await scene.take_over("bbb")
            scene.version = 4
            await commit(scene, data, 5, copied)
            found = await store.ledger.audit(RUN)
            assert (found.trained, found.lost, found.duplicated) == (10, 0, 0)


async def test_a_redis_that_begins_empty_gets_runs_and_datasets_back_from_their_copies(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.flushall()
            with pytest.raises(LostWrites, match="dataset d"):
                await require_complete(scene.store, data, one.url)

            done = await recover_losses(scene.store, data)

            assert any(f"headrace resume {RUN}" in sentence for sentence in done)
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert (run.state, run.committed_step) == ("cancelled", 2)
            found = await scene.store.ledger.audit(RUN)
            assert (found.trained, found.lost, found.duplicated) == (4, 0, 0)
            assert await scene.store.datasets.find("d") is not None
            await require_complete(scene.store, data, one.url)


def key_copy(id: str) -> KeyCopy:
    return KeyCopy(digest=f"hash of {id}", record=ApiKeyRecord(id=id, name="alice", created=1.0))


async def test_a_lost_key_is_noticed_and_a_revoked_one_never_comes_back(tmp_path: Path) -> None:
    data, kept, revoked = tmp_path / "data", key_copy("kept"), key_copy("revoked")
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            store = scene.store
            for copy in (kept, revoked):
                await store.api_keys.add(copy.digest, copy.record)
                keep_key(data, copy)
            mark_revoked(data, [revoked.digest])
            await require_complete(store, data, one.url)
            assert await store.api_keys.list() == [kept.record, revoked.record]
            assert await revoke_again(store, data) == ["API key alice (revoked) is revoked again"]
            assert await store.api_keys.list() == [kept.record]
            await scene.raw.flushall()
            with pytest.raises(LostWrites, match=r"API key alice \(kept\) has a copy"):
                await require_complete(store, data, one.url)

            done = await recover_losses(store, data)

            assert done == ["API key alice (kept) is accepted again"]
            assert await store.api_keys.digests() == {kept.digest: kept.record}


async def test_after_a_restore_the_copies_of_keys_are_those_of_the_backup(tmp_path: Path) -> None:
    data, newer, restored = tmp_path / "data", key_copy("newer"), key_copy("restored")
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            keep_key(data, newer)
            await scene.store.api_keys.add(restored.digest, restored.record)
            await align(scene.store, data)
            await require_complete(scene.store, data, one.url)
            await scene.raw.flushall()
            lost = await compare(scene.store, data)
            assert lost.keys == [restored]


@pytest.mark.parametrize(
    ("redis_knows", "edited", "is_over", "said"),
    [
        (None, None, True, "is there again as succeeded, with all of its 2 steps"),
        (None, 3, False, "is there again as cancelled, up to step 2"),
        (None, 2, True, "is there again as succeeded, with all of its 2 steps"),
        (1, None, True, "stays succeeded, with the checkpoint of step 2"),
        (1, None, False, "has all of its 2 steps, and ends once a learner serves its pool"),
    ],
)
async def test_a_run_with_its_last_checkpoint_is_over_after_recover(
    tmp_path: Path, redis_knows: int | None, edited: int | None, is_over: bool, said: str
) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            key = f"headrace:{{{RUN}}}:run"
            if redis_knows is None:
                copy = await scene.store.runs.get(RUN)
                assert copy is not None
                edits = [
                    RunEdit(key="max_steps", before=5 - last, after=last, by="a", time=1.0)
                    for last in (edited,)
                    if last is not None
                ]
                steps = 2 if edited is None else 5 - edited
                at_first = {"max_steps": steps, "committed_step": 0, "checkpoint": None}
                keep_run(data, copy.model_copy(update=at_first | {"edits": edits}))
                await scene.raw.flushall()
            else:
                await scene.raw.hset(key, mapping={"committed_step": redis_knows, "max_steps": 2})
                if is_over:
                    await scene.store.runs.set_state(RUN, "succeeded", "")

            done = await recover_losses(scene.store, data)

            assert f"run {RUN} ({RUN}) {said}" in "\n".join(done)
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert (run.state == "succeeded", run.committed_step) == (is_over, 2)


async def test_lost_writes_are_listed_with_the_command_to_copy(tmp_path: Path) -> None:
    data = tmp_path / "of Ann"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.hset(f"headrace:{{{RUN}}}:run", "committed_step", "1")
            (data / "redis").mkdir()
            with pytest.raises(LostWrites) as own:
                await require_complete(scene.store, data, one.url)
            (data / "redis").rmdir()
            with pytest.raises(LostWrites) as other:
                await require_complete(scene.store, data, "redis://:secret@far:6379")
    first, fact, *_, command = str(own.value).splitlines()
    assert first == "Redis has lost acknowledged writes"
    assert "step 2" in fact
    assert command.endswith(f" recover --data '{data}'")
    assert str(other.value).endswith(f" --data '{data}' --redis-url 'redis://:***@far:6379'")


async def test_a_commit_or_a_deletion_during_the_comparison_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that started while a learner committed refused to start."""
    data, key = tmp_path / "data", f"headrace:{{{RUN}}}:run"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.hset(key, "committed_step", "1")

            def after_a_commit(data: Path, run: str) -> Commit | None:
                with redis.Redis.from_url(one.url) as learner:
                    learner.hset(key, "committed_step", "2")
                return newest_commit(data, run)

            monkeypatch.setattr("services.recovery.lost_writes.newest_commit", after_a_commit)
            assert not await compare(scene.store, data)

            looks = iter([[*kept_datasets(data)], []])
            monkeypatch.setattr(
                "services.recovery.lost_writes.kept_datasets", lambda _: next(looks)
            )
            await scene.raw.delete("headrace:{datasets}:records")
            await require_complete(scene.store, data, one.url)


async def test_a_damaged_checkpoint_is_not_recovered_from(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            await scene.raw.flushall()
            (data / f"runs/{RUN}/checkpoints/step-000002-aaa/training/state.json").write_text("{}")
            await recover_losses(scene.store, data)
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert run.committed_step == 1
            await require_complete(scene.store, data, one.url)


async def test_a_restored_backup_takes_no_newer_copy_for_a_loss(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            keep_run(data, record("gone"))
            await scene.raw.hset(f"headrace:{{{RUN}}}:run", "committed_step", "1")
            await align(scene.store, data)
            assert [one.step for one in commits(data, RUN)] == [1]
            await require_complete(scene.store, data, one.url)


def test_tasks_that_nobody_names_are_those_that_a_lease_would_have_made() -> None:
    cursor = TaskPosition(3, 0, 5, 3)
    # The dataset has grown to 6 rows before the second epoch began.
    after, open_tasks = still_open(cursor, 6, ["1:0:5:1"], ["0:0:5:0", "2:0:5:2", "6:1:6:1"])
    assert open_tasks == ["1:0:5:1", "3:0:5:3", "4:0:5:4", "5:1:6:0"]
    assert str(after) == "7:1:6:2"


async def test_a_gateway_does_not_start_on_a_redis_that_has_lost_a_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        keep_run(data, record("gone"))
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "services.gateway", "--port", "0"],
            env=os.environ | {"HEADRACE_REDIS_URL": one.url, "HEADRACE_DATA": str(data)},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 2
        assert "run gone (gone) has files, and no record in Redis" in done.stderr
        assert "headrace recover" in done.stderr


async def test_a_learner_pauses_a_run_whose_commits_redis_has_lost_until_it_is_recovered(
    tmp_path: Path,
) -> None:
    # Imports torch.
    from learner.rank import next_run
    from learner.store.thread import StoreThread

    data = tmp_path / "data"
    with server(tmp_path / "redis") as one:
        async with one.scene() as scene:
            await trained(scene, data, 2)
            key = f"headrace:{{{RUN}}}:run"
            await scene.raw.hset(key, "committed_step", "1")
            settings = Settings(redis_url=SecretStr(one.url), data=data)
            volume = Volume(data)

            def look(times: int) -> list[object]:
                with StoreThread(settings, threading.Event()) as thread:
                    thread.take_pool()
                    return [next_run(thread, volume) for _ in range(times)]

            assert await asyncio.to_thread(look, 2) == [None, None]
            run = await scene.store.runs.get(RUN)
            assert run is not None
            assert run.state == "paused"
            assert "Redis knows it up to step 1" in run.reason
            audit = await scene.store.ledger.audit(RUN)
            assert audit.unknown == []
            await recover_losses(scene.store, data)
            (taken,) = await asyncio.to_thread(look, 1)
            assert isinstance(taken, RunRecord)
            assert taken.committed_step == 2
