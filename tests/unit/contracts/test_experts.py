"""How many experts a model has, by whatever its config calls them."""

from typing import Any

import pytest
from transformers import LlamaConfig, MixtralConfig, Qwen3MoeConfig

from services.contracts.experts import EXPERTS, expert_count


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_are_counted_under_every_name_and_in_the_part_for_text(name: str) -> None:
    assert expert_count({name: 8}) == 8
    assert expert_count({"vision_config": {"depth": 2}, "text_config": {name: 8}}) == 8


@pytest.mark.parametrize(
    "config",
    [{}, {"num_experts": 1}, {"num_experts": None}, {"num_experts": 0, "text_config": {}}],
    ids=["unnamed", "one for all", "null", "none"],
)
def test_a_model_without_a_choice_is_dense(config: dict[str, Any]) -> None:
    assert expert_count(config) == 0


def test_a_config_object_of_transformers_counts_the_same_experts() -> None:
    assert expert_count(MixtralConfig(num_local_experts=4)) == 4
    assert expert_count(Qwen3MoeConfig(num_experts=6)) == 6
    assert expert_count(LlamaConfig()) == 0
    around = LlamaConfig()
    around.text_config = Qwen3MoeConfig(num_experts=6)
    assert expert_count(around) == 6
