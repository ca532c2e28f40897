"""Configs of runs on live sessions refuse what belongs to the rows of a dataset."""

from typing import Any

import pytest

from services.contracts.config import ConfigError, RLConfig, parse_config

LIVE: dict[str, Any] = {
    "data": {"source": "sessions"},
    "rewards": [],
    "rollout": {"episode": "sessions", "max_staleness": 8},
    "algorithm": {"samples_per_prompt": 1, "advantage": {"type": "running_mean"}},
    "training": {"max_steps": 3},
}


def live(**changes: Any) -> dict[str, Any]:
    return {"model": {"path": "org/model"}, **LIVE, **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"source": "sessions", "dataset": "d"}}, "dataset is for the rows of a dataset"),
        (
            {"data": {"source": "sessions", "long_prompts": "cut"}},
            "long_prompts is for the rows of a dataset",
        ),
        ({"data": {"source": "sessions", "template": "{prompt}="}}, "template is for the rows"),
        ({"data": {"source": "sessions", "mix": [{"dataset": "d"}]}}, "mix is for the rows"),
        ({"data": {"source": "sessions", "curriculum": {}}}, "curriculum is for the rows"),
        ({"data": {"source": "sessions", "filter": {"low": 0.1}}}, "filter is for the rows"),
        ({"data": {}}, "data.dataset: is required"),
        ({"data": {"dataset": "d", "reward_deadline": 9}}, "reward_deadline is for sessions that"),
        ({"rollout": {}}, "needs rollout.episode: sessions"),
        ({"rewards": [{"verifier": "math"}]}, "set rewards to []"),
        (
            {"algorithm": {"samples_per_prompt": 2}},
            "samples_per_prompt 2: with data.source sessions each session is a group of its own",
        ),
        ({"algorithm": {"samples_per_prompt": 1}}, "or advantage.type to running_mean"),
        ({"training": {}}, "set training.max_steps instead"),
        ({"training": {"epochs": 1}}, "set training.max_steps instead"),
        ({"training": {"max_steps": 0}}, "max_steps 0 trains nothing: set it to 1 or more"),
        ({"evaluation": {"dataset": "d"}}, "nobody answers held-out rows"),
    ],
)
def test_a_run_on_live_sessions_refuses_what_belongs_to_a_dataset(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(live(**changes))
    assert said in str(refused.value)


def test_a_run_on_live_sessions_is_read_back_as_it_was_written() -> None:
    config = parse_config(live())
    assert parse_config(config.model_dump(mode="json")) == config
    assert isinstance(config, RLConfig)
    assert (config.data.reward_seconds, config.warnings()) == (86_400, [])
    hasty = parse_config(live(rollout={"episode": "sessions"}))
    assert isinstance(hasty, RLConfig)
    assert hasty.warnings()[0].startswith("rollout.max_staleness: 1: a session is dropped if")
