"""Template and verifier of a run's datasets: after the submission's own, before the recipe's."""

from typing import Any

import pytest

from recipes import list_recipes
from services.contracts.config import RLConfig, parse_config
from services.contracts.records import DatasetRecord
from services.datasets import KNOWN_FILES
from services.gateway.submission import dataset_defaults
from services.gateway.submission.dataset_check import Datasets
from services.gateway.submission.run_submission import RunSubmission, merged_config


def with_defaults(raw: Any, datasets: Datasets, *more: Any) -> dict[str, Any]:
    """The config alone."""
    return dataset_defaults.with_defaults(raw, datasets, *more)[0]


def brings(mapping: str) -> DatasetRecord:
    """A dataset that came with this mapping; '': without one."""
    defaults = KNOWN_FILES[mapping].defaults if mapping else None
    return DatasetRecord(id="d", name="d", rows=1, created=0, segments=[], defaults=defaults)


def template(mapping: str) -> str:
    return KNOWN_FILES[mapping].defaults.template


def verifiers(section: dict[str, Any]) -> list[str]:
    return [reward["verifier"] for reward in section["rewards"]]


def test_a_run_without_template_or_rewards_takes_those_of_its_dataset() -> None:
    defaults = KNOWN_FILES["countdown"].defaults
    record = DatasetRecord(id="d", name="d", rows=1, created=0, segments=[], defaults=defaults)
    datasets = {"data.dataset": record}

    bare = with_defaults({"type": "rl", "data": {"dataset": "d"}}, datasets)
    assert bare["data"]["template"] == defaults.template
    assert [one["verifier"] for one in bare["rewards"]] == ["countdown"]
    own = {"data": {"dataset": "d", "template": "{prompt}!"}, "rewards": [{"verifier": "math"}]}
    assert with_defaults(own, datasets) == own
    supervised: dict[str, Any] = {"type": "sft", "data": {"dataset": "d"}}
    expected = {"type": "sft", "data": {"dataset": "d", "template": defaults.template}}
    assert with_defaults(supervised, datasets) == expected
    # Several datasets have one template.
    supervised["data"]["mix"] = [{"dataset": "e"}]
    assert with_defaults(supervised, datasets) == supervised


def test_a_held_out_dataset_is_asked_and_scored_in_its_own_way() -> None:
    datasets = {"data.dataset": brings(""), "evaluation.dataset": brings("gsm8k")}
    raw = {
        "data": {"dataset": "d", "template": "{prompt}!"},
        "rewards": [{"verifier": "code"}],
        "evaluation": {"dataset": "e"},
    }
    held_out = with_defaults(raw, datasets)["evaluation"]
    assert held_out["template"] == template("gsm8k")
    assert verifiers(held_out) == ["math"]

    said = {"dataset": "e", "template": "{prompt}?", "rewards": [{"verifier": "exact"}]}
    assert with_defaults(raw | {"evaluation": said}, datasets)["evaluation"] == said


def test_a_run_evaluates_rows_with_the_settings_it_trains_with() -> None:
    datasets = {"data.dataset": brings("gsm8k"), "evaluation.dataset": brings("gsm8k")}
    raw = {
        "data": {"dataset": "d", "template": "{prompt}!"},
        "rewards": [{"verifier": "exact"}],
        "evaluation": {"dataset": "e"},
    }
    assert with_defaults(raw, datasets) == raw


def test_what_one_held_out_dataset_brings_is_not_taken_for_another_one() -> None:
    datasets = {
        "data.dataset": brings(""),
        "evaluation.dataset": brings("gsm8k"),
        "evaluation.more.0.dataset": brings("countdown"),
        "evaluation.more.1.dataset": brings(""),
    }
    more = [{"dataset": "a"}, {"dataset": "b"}]
    raw: dict[str, Any] = {
        "data": {"dataset": "d"},
        "rewards": [{"verifier": "code"}],
        "evaluation": {"dataset": "e", "more": more},
    }
    first, second = with_defaults(raw, datasets)["evaluation"]["more"]
    assert (first["template"], verifiers(first)) == (template("countdown"), ["countdown"])
    assert (second["template"], verifiers(second)) == ("{prompt}", ["code"])

    once = with_defaults(raw, datasets)
    assert with_defaults(once, datasets) == once

    raw["evaluation"] |= {"template": "{prompt}?"}
    for one in with_defaults(raw, datasets)["evaluation"]["more"]:
        assert "template" not in one
    raw["evaluation"] |= {"rewards": [{"verifier": "exact"}]}
    assert with_defaults(raw, datasets)["evaluation"]["more"] == more


def test_a_resumed_run_asks_and_scores_its_datasets_as_before() -> None:
    """It may be older than what they bring now."""
    datasets = {"data.dataset": brings(""), "evaluation.dataset": brings("gsm8k")}
    datasets |= {f"evaluation.more.{i}.dataset": brings("countdown") for i in range(2)}
    previous: dict[str, Any] = {
        "data": {"dataset": "d", "template": "{prompt}!"},
        "rewards": [{"verifier": "code"}],
        "evaluation": {
            "dataset": "e",
            "template": None,
            "rewards": None,
            "more": [{"dataset": "f", "template": None, "rewards": None}],
        },
    }
    assert with_defaults(previous, datasets, previous) == previous
    # Another dataset has its own way.
    more = [*previous["evaluation"]["more"], {"dataset": "g"}]
    changed = previous | {"evaluation": previous["evaluation"] | {"more": more}}
    kept, new = with_defaults(changed, datasets, previous)["evaluation"]["more"]
    assert kept == more[0]
    assert new["template"] == template("countdown")
    assert verifiers(new) == ["countdown"]


NEEDED: dict[str, Any] = {
    "model": {"path": "org/model"},
    "data": {"dataset": "d"},
    "algorithm": {"teacher": {"path": "org/teacher"}},
    "evaluation": None,
}
ALSO = {"distillation": ["algorithm"], "nanochat_grpo": ["evaluation"]}
"""Keys that a recipe asks for besides model and data."""
FAMILIES = [
    one.name for one in list_recipes() if one.config.get("data", {}).get("source") != "sessions"
]


@pytest.mark.parametrize("mapping", KNOWN_FILES)
@pytest.mark.parametrize("recipe", FAMILIES)
def test_each_recipe_asks_and_scores_each_known_dataset_in_the_dataset_s_way(
    recipe: str, mapping: str
) -> None:
    """Whatever the recipe says: its verifier would refuse the rows, its template ask them bare."""
    submission = RunSubmission(recipe=recipe)
    kind = merged_config(submission, None)[0]
    given = {key: NEEDED[key] for key in ("model", "data", *ALSO.get(recipe, []))}
    if kind.get("model", {}).get("source") == "scratch":
        del given["model"]
    submission = RunSubmission(recipe=recipe, config=given)
    raw, _ = merged_config(submission, None)
    datasets = {"data.dataset": brings(mapping)}

    raw, from_datasets = dataset_defaults.with_defaults(raw, datasets, None, given)

    config = parse_config(raw)
    assert config.data.template == template(mapping)
    expected = (
        {"data.template"} if template(mapping) != kind.get("data", {}).get("template") else set()
    )
    if isinstance(config, RLConfig):
        own = KNOWN_FILES[mapping].defaults.rewards
        assert [one.verifier for one in config.rewards] == [one.verifier for one in own]
        assert raw["rewards"] == [one.model_dump() for one in own]
        expected |= {"rewards"}
    assert from_datasets == dict.fromkeys(expected, "d")


def test_what_the_submission_says_comes_before_what_its_dataset_brings() -> None:
    datasets = {"data.dataset": brings("mbpp")}

    def submitted(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        raw, _ = merged_config(RunSubmission(recipe="grpo", config=config), None)
        return dataset_defaults.with_defaults(raw, datasets, None, config)

    said = {"data": {"dataset": "d", "template": "{prompt}!"}, "rewards": [{"verifier": "exact"}]}
    raw, from_datasets = submitted(said)
    assert (raw["data"]["template"], verifiers(raw), from_datasets) == ("{prompt}!", ["exact"], {})
    # A place of the list is one of the dataset's list.
    raw, from_datasets = submitted({"data": {"dataset": "d"}, "rewards": {"0": {"weight": 2.0}}})
    assert [(one["verifier"], one["weight"]) for one in raw["rewards"]] == [("code", 2.0)]
    assert from_datasets == {"data.template": "d"}


def test_a_recipe_that_names_its_dataset_has_chosen_how_it_is_asked() -> None:
    config = {"model": {"path": "org/model"}}
    raw, _ = merged_config(RunSubmission(recipe="smollm2_gsm8k", config=config), None)
    datasets = {"data.dataset": brings("gsm8k")}
    assert dataset_defaults.with_defaults(raw, datasets, None, config) == (raw, {})


def test_a_run_names_the_datasets_whose_template_and_rewards_it_has() -> None:
    datasets = {
        "data.dataset": brings("gsm8k"),
        "data.mix.0.dataset": brings("mbpp"),
        "evaluation.dataset": brings("math"),
    }
    data = {"dataset": "d", "mix": [{"dataset": "e"}], "template": "{prompt}!"}
    raw = {"data": data, "evaluation": {"dataset": "f"}}
    _, from_datasets = dataset_defaults.with_defaults(raw, datasets)
    keys = ("rewards", "data.mix.0.template", "data.mix.0.rewards")
    assert from_datasets == dict.fromkeys([*keys, "evaluation.template", "evaluation.rewards"], "d")
