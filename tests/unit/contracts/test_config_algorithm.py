"""Objectives that cannot work are refused with the way out; those that hardly do are named."""

from typing import Any

import pytest

from services.contracts.config.objective.algorithm import Algorithm


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (
            {"loss": {"type": "dppo"}, "correction": {"type": "mask"}},
            "correction mask would count the same ratio twice: set correction.type to none",
        ),
        (
            {"kl": {"type": "k1_in_reward"}},
            "advantage group_zscore takes one reward per sample: set advantage.type to",
        ),
        (
            {"advantage": {"type": "sequence_value"}, "critic": {}, "kl": {"type": "k1_in_reward"}},
            "advantage sequence_value takes one reward per sample: set advantage.type to global_wh",
        ),
        ({"advantage": {"type": "gae"}}, "advantage gae needs a critic: add `critic: {}`"),
        (
            {"advantage": {"type": "sequence_value"}},
            "advantage sequence_value needs a critic: add `critic: {}`",
        ),
        (
            {"critic": {}},
            "group_zscore has no use for a critic: leave critic out, or set advantage.type to gae",
        ),
        (
            {"advantage": {"type": "gae", "whiten": False, "keep_mean": True}, "critic": {}},
            "keep_mean adds back the mean that whiten subtracts",
        ),
        (
            {"aggregation": {"type": "prompt_mean", "chunk": 9}},
            "aggregation.chunk 9 exceeds samples_per_prompt 8",
        ),
        (
            {"advantage": {"type": "global_whiten", "baseline": True}, "samples_per_prompt": 1},
            "set samples_per_prompt to 2 or more",
        ),
        (
            {"kl": {"type": "k3", "adaptive": {"horizon": 51}}},
            "horizon 51 is no more than a fifth of the 256 samples",
        ),
        (
            {"correction": {"type": "mask"}, "proximal": {"type": "lagged"}},
            "correction mask uses w, which proximal lagged does not have: set correction.type",
        ),
        (
            {"correction": {"type": "truncate"}, "proximal": {"type": "lagged"}},
            "correction truncate uses w",
        ),
        (
            {"correction": {"type": "truncate"}, "loss": {"type": "cispo"}},
            "correction truncate does nothing with proximal sampler and loss cispo",
        ),
        (
            {
                "advantage": {"type": "global_whiten"},
                "samples_per_prompt": 1,
                "dynamic_sampling": {},
            },
            "filters groups whose rewards are all equal, as they always are in a group of one",
        ),
        (
            {"dynamic_sampling": {"low": 0.5, "high": 0.5}},
            "low 0.5 is not below high 0.5: every group would be filtered",
        ),
        (
            {"best_of": {"generation_size": 8}},
            "generation_size 8 is not above samples_per_prompt 8, so nothing is chosen",
        ),
    ],
)
def test_an_objective_that_cannot_work_is_refused(algorithm: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Algorithm.model_validate(algorithm)


@pytest.mark.parametrize(
    "estimator",
    [
        {"advantage": {"type": "global_whiten"}},
        {"advantage": {"type": "gae"}, "critic": {}},
        {"advantage": {"type": "sequence_value"}, "critic": {}},
    ],
)
def test_one_sample_is_enough_for_an_estimator_that_compares_none(
    estimator: dict[str, Any],
) -> None:
    one = estimator | {"samples_per_prompt": 1}
    assert Algorithm.model_validate(one).samples_per_prompt == 1


def test_best_of_samples_more_completions_than_it_trains() -> None:
    assert Algorithm(samples_per_prompt=4).samples_generated == 4
    chosen = Algorithm.model_validate({"samples_per_prompt": 4, "best_of": {"generation_size": 16}})
    assert chosen.samples_generated == 16


def test_the_key_lambda_survives_storing() -> None:
    given = {"advantage": {"type": "gae", "lambda": 0.5}, "critic": {}}
    algorithm = Algorithm.model_validate(given)
    stored = algorithm.model_dump(mode="json")
    assert stored["advantage"]["lambda"] == 0.5
    assert Algorithm.model_validate(stored) == algorithm


@pytest.mark.parametrize(
    ("algorithm", "path", "said"),
    [
        ({"kl": {"type": "k1"}}, "kl.type", "adds noise and no pull"),
        (
            {"loss": {"type": "reinforce"}, "proximal": {"type": "recompute"}},
            "proximal.type",
            "loss reinforce has no ratio to a proximal policy",
        ),
        (
            {"loss": {"type": "dppo"}, "proximal": {"type": "loglinear"}},
            "proximal.type",
            "which loglinear computes: use sampler",
        ),
        (
            {
                "loss": {"type": "reinforce"},
                "proximal": {"type": "lagged"},
                "correction": {"type": "truncate"},
            },
            "proximal.type",
            "which lagged computes: use sampler",
        ),
        (
            {"proximal": {"type": "recompute"}, "early_stop_kl": 0.1},
            "early_stop_kl",
            "nothing ever stops",
        ),
        (
            {"loss": {"type": "sequence_ppo"}},
            "aggregation.type",
            "with token_mean a longer answer counts for more: use sequence_mean",
        ),
        (
            {
                "advantage": {"type": "gae", "bootstrap_truncated": True},
                "critic": {},
                "shaping": {"mask_truncated": True},
            },
            "advantage.bootstrap_truncated",
            "shaping.mask_truncated masks those from the loss",
        ),
        (
            {"advantage": {"type": "global_whiten"}, "dynamic_sampling": {}},
            "dynamic_sampling",
            "groups with equal rewards have a signal too",
        ),
    ],
)
def test_an_objective_that_is_probably_a_mistake_gives_a_warning(
    algorithm: dict[str, Any], path: str, said: str
) -> None:
    ((key, sentence),) = list(Algorithm.model_validate(algorithm).warnings())
    assert key == path
    assert said in sentence


def test_the_default_and_common_objectives_give_no_warning() -> None:
    for algorithm in (
        {},
        {"kl": {"type": "k3+"}, "proximal": {"type": "recompute"}},
        {"early_stop_ratio": 5.0, "proximal": {"type": "recompute"}, "minibatches": 4},
        {"early_stop_ratio": 5.0},
        {"dynamic_sampling": {"low": 0.1, "high": 0.9}, "best_of": {"generation_size": 16}},
        {"advantage": {"type": "global_whiten", "baseline": True}, "dynamic_sampling": {}},
    ):
        assert list(Algorithm.model_validate(algorithm).warnings()) == []
