"""Prompts of several datasets: what each has of its own, and what cannot be mixed."""

from typing import Any

import pytest

from services.contracts.config import ConfigError, RLConfig, parse_config
from services.contracts.rows.mixture import prompt_mixture


def config(data: dict[str, Any], **sections: Any) -> RLConfig:
    base = {
        "type": "rl",
        "model": {"path": "org/model"},
        "rewards": [{"verifier": "math"}],
        "sampling": {"max_tokens": 32},
    }
    found = parse_config(base | {"data": {"dataset": "sums", **data}} | sections)
    assert isinstance(found, RLConfig)
    return found


def test_each_dataset_has_the_options_that_it_sets_and_the_runs_others() -> None:
    code = {
        "dataset": "code",
        "template": "Write: {prompt}",
        "rewards": [{"verifier": "code"}, {"verifier": "format"}],
        "max_tokens": 512,
        "episode": "calculator",
    }
    run = config({"system": "Think.", "mix": [code, {"dataset": "code", "chat_template": "none"}]})

    sums, first, second = run.datasets.values()
    assert list(run.datasets) == ["sums", "code", "code#2"]
    assert sums == run
    assert (first.data.dataset, first.data.system, first.data.template) == (
        "code",
        "Think.",
        "Write: {prompt}",
    )
    assert list(first.components) == ["code", "format"]
    assert (first.sampling.max_tokens, first.rollout.episode.type) == (512, "calculator")
    assert (second.data.template, second.data.chat_template) == ("{prompt}", "none")
    assert (second.components, second.sampling) == (run.components, run.sampling)
    assert run.max_tokens == 512


def test_a_dataset_that_is_alone_has_no_name() -> None:
    assert list(config({}).datasets) == [""]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"weight": 2.0}, "the dataset is, and it is alone: leave it out, or add other"),
        (
            {"weight": 2.0, "mix": [{"dataset": "b"}]},
            "data.dataset has a weight and data.mix.0 has none",
        ),
        ({"mix": [{"dataset": "b", "template": "Q"}]}, "lacks the placeholder {prompt}"),
        (
            {"mix": [{"dataset": "b", "rewards": [{"verifier": "v", "dense": "values"}]}]},
            "dataset b of data.mix: reward 'v' is dense, and advantage group_zscore takes one",
        ),
        (
            {"mix": [{"dataset": "b", "max_tokens": 4096}]},
            "dataset b of data.mix: sampling.max_tokens 4096 leaves no room for a prompt",
        ),
        ({"mix": [{"dataset": "b", "name": "a/b"}]}, "must be text of the form"),
        ({"mix": [{"dataset": "b", "episode": "sessions"}]}, "take the prompts of one dataset"),
    ],
)
def test_a_mixture_that_cannot_work_is_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(data, rollout={"vllm": {"max_model_len": 2048}})
    assert said in str(raised.value.problems)


def test_an_epoch_has_each_dataset_by_its_weight_and_a_dataset_without_rows_is_named() -> None:
    data = config({"weight": 3.0, "mix": [{"dataset": "b", "name": "bees", "weight": 1.0}]}).data
    mixture = prompt_mixture(data, [6, 2], seed=0)
    places = [mixture.place(position) for position in range(mixture.epoch_rows)]
    assert sorted(places) == [*((0, row) for row in range(6)), (1, 0), (1, 1)]
    with pytest.raises(ValueError, match="dataset bees is empty"):
        prompt_mixture(data, [6, 0], seed=0)


def test_dataset_names_stay_unique_even_if_a_name_ends_in_a_number() -> None:
    words = [{"dataset": "words", "name": name} for name in ("words", "words#2", "words")]
    run = config({"name": "words", "mix": words})
    assert list(run.datasets) == ["words", "words#3", "words#2", "words#4"]
    assert len(run.datasets) == len(run.data.components)


@pytest.mark.parametrize("section", ["mix", "more", "rewards", "held out rewards", "validation"])
def test_lists_that_are_checked_in_pairs_have_an_end(section: str) -> None:
    """A megabyte of such a list took minutes, in which the gateway answered nobody."""
    sets = [{"dataset": f"d{n}"} for n in range(300)]
    rewards = [{"verifier": f"v{n}"} for n in range(300)]
    sections: dict[str, Any] = {
        "mix": {"data": {"dataset": "d", "mix": sets}},
        "more": {"evaluation": {"dataset": "e", "more": sets}},
        "rewards": {"rewards": rewards},
        "held out rewards": {"evaluation": {"dataset": "e", "rewards": rewards}},
        "validation": {"type": "sft", "validation": {"datasets": [one["dataset"] for one in sets]}},
    }
    base: dict[str, Any] = {"type": "rl", "model": {"path": "m"}, "data": {"dataset": "sums"}}
    if section != "validation":
        base["rewards"] = [{"verifier": "math"}]
    with pytest.raises(ConfigError, match="at most 256"):
        parse_config(base | sections[section])
