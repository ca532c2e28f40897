"""An episode type of the user's own in a worker: the groups that it completes, and those that are
refused."""

from pathlib import Path

import pytest

from tests.integration.rollout.working import Work

MODULE = """
import numpy as np
from rollout.vllm.client.resume import joined, not_sampled
from rollout.episodes import Completion, Reward

class Twice:
    def __init__(self, between):
        self.between = between

    async def run(self, row, prompt_tokens, n, sampler):
        found = []
        for index, first in enumerate(await sampler.sample(prompt_tokens, n)):
            whole = joined(first, not_sampled(self.between, "stop"))
            asked = [*prompt_tokens, *whole.token_ids.tolist()]
            done = len(whole.token_ids)
            (second,) = await sampler.sample(asked, 1, index=index, done=done)
            whole = joined(whole, second)
            mask = np.ones(len(whole.token_ids), dtype=bool)
            mask[len(first.token_ids) : done] = False
            found.append(
                Completion(whole.token_ids, mask, whole.logprobs, whole.spans, whole.finish_reason)
            )
        return found

class Forgetful(Twice):
    async def run(self, row, prompt_tokens, n, sampler):
        return (await super().run(row, prompt_tokens, n, sampler))[1:]

class Judging(Twice):
    async def run(self, row, prompt_tokens, n, sampler):
        first, second, third = await super().run(row, prompt_tokens, n, sampler)
        first.reward = Reward(reward=0.75, components={"shape": 0.25, "sum": 0.5})
        second.reward = Reward(error="the tool is away")
        return [first, second, third]
"""
POINTS = "twice = two_turns:Twice\nforgetful = two_turns:Forgetful\njudging = two_turns:Judging\n"
# First the first turn of both samples, then the second turn of each.
SCRIPT = {"replies": [[5, 6], [7], [8, 2], [9, 9, 2]]}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    about = folder / "two_turns-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "two_turns.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: two-turns\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[headrace.episodes]\n{POINTS}")
    return folder


def episode(name: str) -> dict[str, object]:
    of_type = {"type": "own", "name": name, "options": {"between": [4, 4]}}
    return {"episode": of_type, "groups_in_flight": 1}


async def test_turns_of_an_own_episode_are_one_trajectory(
    working: Work, tmp_path: Path, packages: Path
) -> None:
    async with working(
        tmp_path, ["1+1"], SCRIPT, packages, rollout=episode("twice"), sampling={"max_tokens": 16}
    ) as one:
        group = await one.group(0)

    assert group.tokens.tolist() == [5, 6, 4, 4, 8, 2, 7, 4, 4, 9, 9, 2]
    assert group.lengths.tolist() == [6, 6]
    sampled = [True, True, False, False, True, True, True, False, False, True, True, True]
    assert group.loss_mask.tolist() == sampled
    assert group.header.finish_reasons == ["stop", "stop"]


async def test_a_group_that_lacks_a_completion_is_not_completed(
    working: Work, tmp_path: Path, packages: Path
) -> None:
    rollout = episode("forgetful")
    async with working(tmp_path, ["1+1"], SCRIPT, packages, rollout=rollout) as one:
        events = await one.events(lambda e: bool(e) and e[-1].data.get("state") == "failed")

    assert "the episode type returned 1 completions, not 2" in events[-1].data["reason"]


async def test_an_episodes_reward_counts_and_verifiers_score_the_rest(
    working: Work, tmp_path: Path, packages: Path
) -> None:
    async with working(
        tmp_path,
        ["1+1"],
        SCRIPT,
        packages,
        rollout=episode("judging"),
        sampling={"max_tokens": 16},
        algorithm={"samples_per_prompt": 3},
    ) as one:
        header = (await one.group(0)).header

    assert header.rewards == [0.75, None, 0.0]
    assert header.statuses[:2] == ["scored", "error"]
    assert header.components["shape"] == [0.25, None, None]
    assert header.components["exact"] == [None, None, 0.0]
