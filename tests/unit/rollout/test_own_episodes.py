"""Episode types of the user's own: classes that an installed package names as entry points."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rollout.episodes import Completion, Reward, UnusableEpisode, load_episode
from rollout.episodes.own_episode import checked
from rollout.rewards.combine import AnswerText
from rollout.vllm.client.response import Span
from rollout.work.run_context import RunContext
from rollout.work.scoring import scores_of
from services.contracts.config import parse_config
from services.contracts.config.episodes import OwnEpisode, own_episodes
from services.contracts.rows.dataset import Row
from tests.unit.rollout.episodes import NO_REWARDS, WordTokenizer

MODULE = """
class Guessing:
    def __init__(self, rounds=1):
        self.rounds = rounds

    async def run(self, row, prompt_tokens, n, sampler):
        return []

class Other:
    pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with two entry points. One of them is not an episode."""
    (tmp_path / "guessing_game.py").write_text(MODULE)
    about = tmp_path / "guessing_game-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: guessing-game\nVersion: 1.0\n")
    points = "guessing = guessing_game:Guessing\nother = guessing_game:Other\n"
    (about / "entry_points.txt").write_text(f"[headrace.episodes]\n{points}")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "guessing_game", raising=False)


def own(name: str, **options: object) -> OwnEpisode:
    return OwnEpisode(type="own", name=name, options=options)


@pytest.mark.usefixtures("installed")
def test_an_episode_type_gets_the_configs_options() -> None:
    assert own_episodes() == ["guessing", "other"]
    episode: Any = load_episode(own("guessing", rounds=3), WordTokenizer(), {}, NO_REWARDS)
    assert episode.rounds == 3


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("episode", "said"),
    [
        (
            own("gessing"),
            "'gessing' is not installed here; .*single_turn, calculator, tools, sessions, guessing",
        ),
        (own("guessing", turns=3), "options: .* unexpected keyword argument 'turns'"),
        (own("other"), "guessing_game:Other has no method `run`"),
    ],
    ids=["unknown", "options", "no episode"],
)
def test_an_unusable_episode_type_is_refused_with_the_reason(
    episode: OwnEpisode, said: str
) -> None:
    with pytest.raises(UnusableEpisode, match=said):
        load_episode(episode, WordTokenizer(), {}, NO_REWARDS)


def completion(mask: list[bool], spans: list[Span], logprobs: int = 3) -> Completion:
    """Return a completion of three tokens."""
    return Completion(
        token_ids=np.array([5, 6, 7], np.int32),
        loss_mask=np.array(mask),
        logprobs=np.zeros(logprobs, np.float32),
        spans=spans,
        finish_reason="stop",
    )


def test_sampled_and_inserted_tokens_may_alternate() -> None:
    spans = [Span(0, 1, "a:1"), Span(2, 3, "a:2")]
    good = [completion([True, False, True], spans), completion([False] * 3, [])]
    assert checked(good, 2) == good


@pytest.mark.parametrize(
    ("completions", "said"),
    [
        ([], "returned 0 completions, not 1"),
        ([completion([True] * 3, [Span(0, 3, "a:1")])] * 2, "returned 2 completions, not 1"),
        ([completion([True] * 2, [])], "3 tokens, a loss_mask of 2 and 3 logprobs"),
        ([completion([True] * 3, [Span(0, 3, "a:1")], 4)], "a loss_mask of 3 and 4 logprobs"),
        ([completion([True] * 3, [Span(0, 2, "a:1")])], "true on tokens outside all spans"),
    ],
    ids=["none", "too many", "mask", "logprobs", "not sampled"],
)
def test_wrong_completions_of_an_episode_are_refused(
    completions: list[Completion], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        checked(completions, 1)


@pytest.mark.parametrize(
    "reward",
    [
        1.0,
        Reward(reward=math.nan),
        Reward(reward=-1.7e308),
        Reward(reward=10**400),
        Reward(reward=1.0, components={"form": math.inf}),
    ],
)
def test_an_invalid_reward_is_refused(reward: Any) -> None:
    made = completion([True] * 3, [Span(0, 3, "a:1")])
    made.reward = reward
    with pytest.raises(ValueError, match="returned the reward"):
        checked([made], 1)


@pytest.mark.parametrize(
    "reward",
    [
        Reward(reward=1, components={"form": 0.5}),
        Reward(reward=True),
        Reward(error="the tool is away"),
    ],
)
def test_an_episode_may_give_a_sample_its_reward(reward: Reward) -> None:
    made = completion([True] * 3, [Span(0, 3, "a:1")])
    made.reward = reward
    assert checked([made], 1) == [made]


async def test_a_sample_without_a_reward_is_masked_in_a_run_without_verifiers() -> None:
    raw = {"model": {"path": "m"}, "data": {"dataset": "d"}, "rewards": []}
    config = parse_config(raw | {"rollout": {"episode": "mine"}})
    context = cast(RunContext, SimpleNamespace(config=config))
    (score,) = await scores_of(
        context, {}, "1+1", Row(prompt="1+1", answer=None), 0, [AnswerText("2")]
    )
    assert score.reward is None
    assert "gave no reward" in score.detail
