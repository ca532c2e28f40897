"""Template and verifier of a run's datasets, where its config names none."""

from typing import Any

from services.contracts.records import DatasetRecord
from services.datasets import KNOWN_FILES
from services.gateway.dataset_defaults import with_defaults


def brings(mapping: str) -> DatasetRecord:
    """A dataset that came with this mapping; '': without one."""
    defaults = KNOWN_FILES[mapping].defaults if mapping else None
    return DatasetRecord(id="d", name="d", rows=1, created=0, segments=[], defaults=defaults)


def template(mapping: str) -> str:
    return KNOWN_FILES[mapping].defaults.template


def verifiers(section: dict[str, Any]) -> list[str]:
    return [reward["verifier"] for reward in section["rewards"]]


def test_a_run_takes_the_template_and_rewards_of_its_dataset_where_it_names_none() -> None:
    defaults = KNOWN_FILES["countdown"].defaults
    record = DatasetRecord(id="d", name="d", rows=1, created=0, segments=[], defaults=defaults)
    datasets = {"data.dataset": record}

    bare = with_defaults({"type": "rl", "data": {"dataset": "d"}}, datasets)
    assert bare["data"]["template"] == defaults.template
    assert [one["verifier"] for one in bare["rewards"]] == ["countdown"]
    own = {"data": {"dataset": "d", "template": "{prompt}!"}, "rewards": [{"verifier": "math"}]}
    assert with_defaults(own, datasets) == own
    supervised = {"type": "sft", "data": {"dataset": "d"}}
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


def test_a_run_evaluates_rows_as_it_was_told_to_train_on_their_like() -> None:
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
