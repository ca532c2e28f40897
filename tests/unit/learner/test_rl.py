"""The effect of one batch on a run's progress."""

from typing import Any

import pytest

from learner.rl import advanced, beta_so_far, objective_of
from learner.state import TrainingProgress
from services.contracts.config import RLConfig, parse_config


def config(**algorithm: Any) -> RLConfig:
    given = parse_config(
        {
            "model": {"path": "org/model"},
            "data": {"dataset": "d"},
            "rewards": [{"verifier": "math"}],
            "algorithm": {"prompts_per_step": 4, "samples_per_prompt": 5, **algorithm},
        }
    )
    assert isinstance(given, RLConfig)
    return given


START = TrainingProgress("r", 3, 3, [("a", 0)], "base", kl_beta=0.2)


def test_a_batch_counts_as_one_step_however_many_updates_it_took() -> None:
    after = advanced(START, config(minibatches=2, epochs_per_batch=3), {"train/updates": 1.0})
    assert (after.step, after.version) == (4, 4)


def test_an_adaptive_beta_goes_on_from_the_one_of_the_batch() -> None:
    # n = 20, KL a tenth above its target: 0.2 · (1 + 0.1 · 20/100).
    kl = {"type": "k3", "adaptive": {"target": 4, "horizon": 100}}
    measured = {"train/kl_per_sample": 4.4, "train/kl_beta": 0.2}
    assert advanced(START, config(kl=kl), measured).kl_beta == pytest.approx(0.204, rel=1e-12)


def test_an_adaptive_beta_per_token_follows_the_mean_over_tokens() -> None:
    kl = {"type": "k3", "adaptive": {"target": 0.4, "horizon": 100, "per": "token"}}
    measured = {"train/kl_per_sample": 40.0, "train/kl": 0.44, "train/kl_beta": 0.2}
    assert advanced(START, config(kl=kl), measured).kl_beta == pytest.approx(0.204, rel=1e-12)


def test_a_resumed_run_that_sets_another_beta_begins_from_it() -> None:
    kl = {"type": "k3", "beta": 0.1, "adaptive": {"target": 4, "horizon": 100}}
    first = config(kl=kl)
    state = advanced(START, first, {"train/kl_per_sample": 4.4, "train/kl_beta": 0.2})

    assert beta_so_far(state, first.algorithm) == pytest.approx(0.204, rel=1e-12)
    assert beta_so_far(state, config(kl=kl | {"beta": 0.3}).algorithm) is None


def test_a_batch_without_trained_samples_leaves_beta_unchanged() -> None:
    kl = {"type": "k3", "adaptive": {"target": 4, "horizon": 100}}
    assert advanced(START, config(kl=kl), {"train/kl_beta": 0.2}).kl_beta == 0.2


def test_a_beta_that_is_not_adaptive_stays() -> None:
    measured = {"train/kl_per_sample": 40.0, "train/kl_beta": 0.1}
    assert advanced(START, config(kl={"type": "k3"}), measured).kl_beta == 0.2


def test_the_constant_of_dr_grpo_is_the_longest_completion_of_any_dataset() -> None:
    longer = {"dataset": "e", "max_tokens": 512}
    mixture = parse_config(
        config().model_dump(mode="json")
        | {"sampling": {"max_tokens": 64}, "data": {"dataset": "d", "mix": [longer]}}
    )
    assert isinstance(mixture, RLConfig)
    assert objective_of(mixture, START).max_tokens == 512
    assert objective_of(config(), START).max_tokens == 64
