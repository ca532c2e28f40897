"""`rollout.episode`: a name, or a section."""

from typing import Any

import pytest

from recipes import merged
from services.contracts.config import ConfigError, RLConfig, parse_config
from services.contracts.config.episodes import Calculator, OwnEpisode, SingleTurn, Tools

RL: dict[str, Any] = {
    "model": {"path": "org/model"},
    "data": {"dataset": "sums"},
    "rewards": [{"verifier": "exact"}],
}


def episode(value: Any) -> Any:
    config = parse_config(RL | {"rollout": {"episode": value}})
    assert isinstance(config, RLConfig)
    # Every process reads the stored config of a run again.
    assert parse_config(config.model_dump(mode="json")) == config
    return config.rollout.episode


def test_an_episode_may_be_written_as_its_name() -> None:
    assert episode("single_turn") == SingleTurn()
    assert episode("calculator") == Calculator(type="calculator")
    assert episode("mine") == OwnEpisode(type="own", name="mine")


def test_overrides_change_an_episode_or_replace_it() -> None:
    base = {"rollout": {"episode": {"type": "calculator", "end": "="}}}
    changed = merged(base, {"rollout": {"episode": {"max_calls": 3}}})
    assert episode(changed["rollout"]["episode"]) == Calculator(
        type="calculator", end="=", max_calls=3
    )
    assert merged(base, {"rollout": {"episode": "mine"}})["rollout"]["episode"] == "mine"
    other = {"type": "own", "name": "mine"}
    assert merged(base, {"rollout": {"episode": other}})["rollout"]["episode"] == other


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"type": "calculater"}, "type 'calculater' does not exist (did you mean 'calculator'?)"),
        ({"type": "calculator", "ends": "="}, "unknown key; did you mean 'rollout.episode.end'?"),
        ({"type": "calculator", "start": "<=", "end": "="}, "no call would ever begin"),
        ({"type": "calculator", "max_calls": 0}, "at least 1"),
    ],
)
def test_an_episode_that_cannot_work_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        episode(value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"evaluation": {"dataset": "test"}}, "evaluation: agents outside answer"),
        ({"data": {"dataset": "a", "curriculum": {}}}, "data.curriculum: agents"),
        ({"data": {"dataset": "a", "mix": [{"dataset": "b"}]}}, "data.mix: agents"),
        ({"sampling": {"ignore_eos": True}}, "sampling.ignore_eos: an answer"),
        (
            {
                "rewards": [{"verifier": "exact", "dense": "values"}],
                "algorithm": {"advantage": {"type": "global_whiten"}},
            },
            "rewards: dense rewards",
        ),
        ({"algorithm": {"router": {"replay": True}}}, "algorithm.router.replay: expert routing"),
        ({"rollout": {"straggler_deadline": 60}}, "rollout.straggler_deadline: workers"),
    ],
    ids=["evaluation", "curriculum", "mixture", "ignore_eos", "dense", "replay", "stragglers"],
)
def test_what_agents_cannot_have_is_refused_by_name(more: dict[str, Any], said: str) -> None:
    rollout = {"episode": "sessions", **more.get("rollout", {})}
    with pytest.raises(ConfigError) as refused:
        parse_config(RL | more | {"rollout": rollout})
    assert said in str(refused.value)


@pytest.mark.parametrize("value", ["sessions", "mine"])
def test_an_episode_with_its_own_rewards_needs_no_verifier(value: str) -> None:
    config = parse_config(RL | {"rewards": [], "rollout": {"episode": value}})
    assert isinstance(config, RLConfig)
    assert config.rewards == []


def test_without_a_verifier_a_mixture_needs_such_an_episode_everywhere() -> None:
    data = {"dataset": "a", "mix": [{"dataset": "b", "episode": "single_turn"}]}
    with pytest.raises(ConfigError, match="rewards is empty"):
        parse_config(RL | {"rewards": [], "data": data, "rollout": {"episode": "mine"}})


TOOLS: dict[str, Any] = {"type": "tools", "servers": ["sums"]}
PARSER = {"extra": {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}}


def with_tools(episode: dict[str, Any] = TOOLS, **sections: Any) -> RLConfig:
    rollout = {"episode": episode, "vllm": PARSER} | sections.pop("rollout", {})
    config = parse_config(RL | {"rollout": rollout} | sections)
    assert isinstance(config, RLConfig)
    return config


def test_an_episode_with_tools_names_its_servers() -> None:
    assert with_tools().rollout.episode == Tools(type="tools", servers=["sums"])
    assert with_tools({"type": "tools", "python": True}).rollout.vllm.parses_tools


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"episode": {"type": "tools"}}, "there is no tool to call"),
        ({"episode": {"type": "tools", "servers": ["a", "a"]}}, "names one twice"),
        ({"episode": {"type": "tools", "servers": ["http://h/mcp"]}}, "text of the form"),
        ({"rollout": {"vllm": {}}}, "has no parser for the model's tool calls"),
        ({"data": {"dataset": "d", "chat_template": "none"}}, "leave it at auto"),
        ({"sampling": {"ignore_eos": True}}, "leave it out"),
        (
            {
                "rewards": [{"verifier": "exact", "dense": "values"}],
                "algorithm": {"advantage": {"type": "global_whiten"}},
            },
            "verifiers read the last answer",
        ),
    ],
)
def test_tools_that_no_episode_can_use_are_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_tools(**sections)
