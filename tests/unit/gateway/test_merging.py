"""How overrides are laid over a recipe."""

from typing import Any

import pytest

from recipes import merged

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


def test_lists_are_replaced() -> None:
    assert merged(GRPO, {"rewards": [{"verifier": "exact"}]})["rewards"] == [{"verifier": "exact"}]


def test_null_removes_an_optional_section() -> None:
    base = {"evaluation": {"dataset": "test"}}

    assert merged(base, {"evaluation": None}) == {"evaluation": None}


def test_another_kind_replaces_its_section() -> None:
    assert merged(GRPO, {"optimizer": {"type": "muon"}})["optimizer"] == {"type": "muon"}


def test_a_kind_is_told_from_its_default_where_the_recipe_does_not_name_it() -> None:
    same = merged(GRPO, {"algorithm": {"loss": {"type": "ppo", "epsilon_low": 0.1}}})
    other = merged(GRPO, {"algorithm": {"loss": {"type": "cispo"}}})

    assert same["algorithm"]["loss"] == {"type": "ppo", "epsilon_low": 0.1, "epsilon_high": 0.28}
    assert other["algorithm"]["loss"] == {"type": "cispo"}


def test_types_that_share_their_keys_are_one_kind() -> None:
    result = merged(GRPO, {"algorithm": {"kl": {"type": "k3"}}})

    assert result["algorithm"]["kl"] == {"type": "k3", "beta": 0.1}


def test_a_type_that_is_no_kind_is_an_ordinary_key() -> None:
    result = merged(GRPO, {"schedule": {"type": "cosine"}})

    assert result["schedule"] == {"type": "cosine", "warmup_steps": 5}


def test_another_type_of_run_takes_nothing_from_the_recipe() -> None:
    override = {"type": "midtrain", "data": {"dataset": "d"}}

    assert merged(GRPO, override) == override


@pytest.mark.parametrize("override", [{"optimizer": {"type": "sgd"}}, {"optimiser": {"lr": 1}}])
def test_what_the_config_does_not_know_is_kept_for_validation_to_name(
    override: dict[str, Any],
) -> None:
    (section,) = override
    assert merged(GRPO, override)[section] == override[section]
