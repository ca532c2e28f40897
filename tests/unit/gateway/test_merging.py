"""How overrides are laid over a recipe."""

from typing import Any

import pytest

from recipes import merged
from services.contracts.config import ConfigError

GRPO: dict[str, Any] = {
    "optimizer": {"type": "adamw", "lr": 1e-6, "max_grad_norm": 1.0},
    "schedule": {"type": "constant", "warmup_steps": 5},
    "rewards": [{"verifier": "math"}],
    "algorithm": {"loss": {"epsilon_high": 0.28}, "kl": {"type": "k1", "beta": 0.1}},
}


def test_sections_merge_key_by_key_and_nothing_is_changed_in_place() -> None:
    result = merged(GRPO, {"optimizer": {"lr": 3e-6}, "training": {"max_steps": 5}})

    assert result["optimizer"] == {"type": "adamw", "lr": 3e-6, "max_grad_norm": 1.0}
    assert result["training"] == {"max_steps": 5}
    assert GRPO["optimizer"]["lr"] == 1e-6


def test_a_list_in_an_override_replaces_the_recipes_list() -> None:
    assert merged(GRPO, {"rewards": [{"verifier": "exact"}]})["rewards"] == [{"verifier": "exact"}]


def test_a_mapping_of_places_changes_those_of_a_list() -> None:
    base = {
        "rewards": [
            {"verifier": "math", "params": {"strict": True}},
            {"verifier": "length", "clip": [-1, 1]},
        ]
    }

    changed = merged(
        base, {"rewards": {"0": {"weight": 2, "params": {"timeout": 9}}, "1": {"clip": {"0": -3}}}}
    )

    assert changed["rewards"] == [
        {"verifier": "math", "params": {"strict": True, "timeout": 9}, "weight": 2},
        {"verifier": "length", "clip": [-3, 1]},
    ]
    assert base["rewards"][1] == {"verifier": "length", "clip": [-1, 1]}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("1", "rewards is a list without a place '1': its places are 0 to 0"),
        ("-1", "without a place '-1'"),
        ("9" * 5000, "without a place '999"),
    ],
)
def test_a_place_that_a_list_does_not_have_is_refused_by_its_key(place: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        merged(GRPO, {"rewards": {place: {"weight": 2}}})

    ((path, message),) = refused.value.problems
    assert path == f"rewards.{place[:80]}"
    assert said in message


def test_a_place_and_a_name_are_not_mixed() -> None:
    with pytest.raises(ConfigError, match="rewards is a list without a place 'weight'"):
        merged(GRPO, {"rewards": {"0": {"weight": 2}, "weight": 3}})


def test_null_in_an_override_removes_an_optional_section() -> None:
    base = {"evaluation": {"dataset": "test"}}

    assert merged(base, {"evaluation": None}) == {"evaluation": None}


def test_another_kind_replaces_its_section() -> None:
    assert merged(GRPO, {"optimizer": {"type": "muon"}})["optimizer"] == {"type": "muon"}


def test_a_section_without_a_type_counts_as_its_default_kind() -> None:
    same = merged(GRPO, {"algorithm": {"loss": {"type": "ppo", "epsilon_low": 0.1}}})
    other = merged(GRPO, {"algorithm": {"loss": {"type": "cispo"}}})

    assert same["algorithm"]["loss"] == {"type": "ppo", "epsilon_low": 0.1, "epsilon_high": 0.28}
    assert other["algorithm"]["loss"] == {"type": "cispo"}


def test_types_that_share_their_keys_are_one_kind() -> None:
    result = merged(GRPO, {"algorithm": {"kl": {"type": "k3"}}})

    assert result["algorithm"]["kl"] == {"type": "k3", "beta": 0.1}


def test_a_type_outside_the_known_kinds_merges_as_an_ordinary_key() -> None:
    result = merged(GRPO, {"schedule": {"type": "cosine"}})

    assert result["schedule"] == {"type": "cosine", "warmup_steps": 5}


def test_another_type_of_run_takes_nothing_from_the_recipe() -> None:
    override = {"type": "sft", "data": {"dataset": "d"}}

    assert merged(GRPO, override) == override


@pytest.mark.parametrize("override", [{"optimizer": {"type": "sgd"}}, {"optimiser": {"lr": 1}}])
def test_what_the_config_does_not_know_is_kept_for_validation_to_name(
    override: dict[str, Any],
) -> None:
    (section,) = override
    assert merged(GRPO, override)[section] == override[section]
