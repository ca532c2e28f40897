"""Copies of the policy: their weights after each step, also after a resume."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.checkpoints.captured import capture
from learner.checkpoints.checkpoint_reader import (
    UnusableCheckpoint,
    load_copy,
    load_optimizer,
    verify,
)
from learner.checkpoints.checkpoint_writer import write_checkpoint
from learner.errors import UnusableModel
from learner.model.loading.model_loader import LoadedModel, load_model
from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.reference_policies import (
    CopiedPolicy,
    Copies,
    Following,
    PolicyCopy,
    Scorers,
    following,
    load_copies,
)
from learner.objective.compose import Objective
from learner.optim.optimizers import Optimizers
from learner.state import TrainingProgress
from learner.step import train_batch
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.objective.copies import (
    EMAReference,
    FrozenReference,
    LaggedProximal,
    Reference,
    RefreshReference,
)
from services.contracts.config.optimizer import AdamW
from tests.unit.learner.policies import TINY, random_samples, state_of, tiny_model
from tests.unit.learner.unigrams import ALONE

OBJECTIVES: dict[str, dict[str, Any]] = {
    "lagged": {"proximal": {"type": "lagged", "every": 2}},
    "ema": {"kl": {"type": "k3", "reference": {"type": "ema", "rate": 0.3}}},
    "refresh": {"kl": {"type": "k2", "reference": {"type": "refresh", "every": 2}}},
    "both": {
        "proximal": {"type": "lagged", "every": 2},
        "kl": {"type": "k3+", "reference": {"type": "ema", "rate": 0.3}},
    },
}


def weights_after(following: Following | None, policies: list[float]) -> list[float]:
    """A weight of a copy that begins at 0, after steps that set all weights of the policy to
    `policies` in turn."""
    copy = PolicyCopy(TokenLogprobs(tiny_model().model), following)
    policy = tiny_model().model
    for weight in copy.parameters.values():
        weight.data.zero_()
    found = []
    for step, value in enumerate(policies, 1):
        for parameter in policy.parameters():
            parameter.data.fill_(value)
        copy.after_step(step, policy)
        found.append(copy.parameters["model.layers.0.mlp.up_proj.weight"][0, 0].item())
    return found


def test_a_lagged_copy_is_taken_every_n_steps_and_is_the_start_before() -> None:
    assert weights_after(Following(every=3), [1, 2, 3, 4, 5, 6, 7]) == [0, 0, 3, 3, 3, 6, 6]


def test_a_frozen_copy_stays() -> None:
    assert weights_after(None, [1, 2]) == [0, 0]


def test_an_average_goes_a_share_of_the_way_to_the_policy_after_each_step() -> None:
    # 0 + (1 − 0)/4; 1/4 + (2 − 1/4)/4 = 11/16; 11/16 + (−1 − 11/16)/4 = 17/64.
    assert weights_after(Following(rate=0.25), [1, 2, -1]) == [0.25, 0.6875, 0.265625]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FrozenReference(), None),
        (EMAReference(type="ema", rate=0.1), Following(every=1, rate=0.1)),
        (RefreshReference(type="refresh", every=5), Following(every=5, rate=1.0)),
        (LaggedProximal(type="lagged", every=4), Following(every=4, rate=1.0)),
    ],
)
def test_each_kind_of_copy_follows_as_it_is_called(
    config: Reference | LaggedProximal, expected: Following | None
) -> None:
    assert following(config) == expected


def start(folder: Path) -> RLConfig:
    """A run that has just begun, from a model in `folder`, without copies."""
    write_checkpoint(folder, captured(folder, tiny_model()), lambda: None)
    return config(folder / "step-000000-a")


def config(model: Path, **algorithm: Any) -> RLConfig:
    given = parse_config(
        {
            "model": {"path": str(model)},
            "data": {"dataset": "d"},
            "rewards": [{"verifier": "math"}],
            "optimizer": {"lr": 1e-2},
            "algorithm": algorithm,
        }
    )
    assert isinstance(given, RLConfig)
    return given


def captured(base: Path, loaded: LoadedModel) -> Any:
    state = TrainingProgress("r", 0, 0, [("a", 0)], str(base))
    return capture(state_of(loaded, Optimizers(loaded.model, AdamW()), progress=state))


class Run:
    """A learner's state of a run, from its start or from a checkpoint."""

    def __init__(self, config: RLConfig, folder: Path | None = None) -> None:
        base = config.model.path
        started = TrainingProgress("r", 0, 0, [("a", 0)], base)
        self.config, self.state = config, verify(folder) if folder else started
        self.loaded = load_model(str(folder or base), config.model)
        self.optimizers = Optimizers(self.loaded.model, config.optimizer)
        policy = TokenLogprobs(self.loaded.model)
        started_from = self.state.base_model
        self.copies = load_copies(
            config, CopiedPolicy(policy, ALONE), started_from, str(folder or base)
        )
        if folder:
            for name, copy in self.copies.moving.items():
                load_copy(folder, name, copy.parameters)
            load_optimizer(folder, self.optimizers)

    def step(self) -> dict[str, float]:
        """Train one more batch, the same for all runs at this step."""
        step = self.state.step + 1
        metrics = train_batch(
            state_of(self.loaded, self.optimizers, self.copies),
            [random_samples(groups=3, per_group=3, seed=step)],
            Objective(self.config.algorithm, 0.8, 12),
            MicroBatches(ALONE, 1000),
            lambda _: 1.0,
        )
        self.state = replace(self.state, step=step)
        self.copies.after_step(step, self.loaded.model)
        return metrics

    def checkpoint(self, root: Path) -> Path:
        state = state_of(self.loaded, self.optimizers, self.copies, progress=self.state)
        made = capture(state)
        return write_checkpoint(root, made, lambda: None)


def test_ratios_are_taken_against_the_lagged_copy(tmp_path: Path) -> None:
    start(tmp_path)
    lagged = {"proximal": {"type": "lagged", "every": 2}}
    run = Run(config(tmp_path / "step-000000-a", **lagged))
    apart = [run.step()["train/proximal_kl"] for _ in range(3)]
    # Before the first and the third step the copy is the policy; before the second it is the policy
    # of the first. The sampler's log-probabilities play no part.
    assert apart[0] == pytest.approx(0, abs=1e-9)
    assert apart[1] > 1e-4
    assert apart[2] == pytest.approx(0, abs=1e-9)


def test_the_kl_is_to_where_the_reference_has_gone(tmp_path: Path) -> None:
    start(tmp_path)
    kl = {"type": "k3", "reference": {"type": "refresh", "every": 2}}
    run = Run(config(tmp_path / "step-000000-a", kl=kl))
    found = [run.step()["train/kl"] for _ in range(3)]
    assert found[0] == found[2] == pytest.approx(0, abs=1e-9)
    assert found[1] > 1e-4


def test_a_reference_that_has_moved_is_what_the_run_started_from_once_it_is_frozen(
    tmp_path: Path,
) -> None:
    start(tmp_path)
    base = tmp_path / "step-000000-a"
    run = Run(config(base, **OBJECTIVES["ema"]))
    run.step()
    resumed = Run(config(base, kl={"type": "k3"}), run.checkpoint(tmp_path))
    assert resumed.copies.reference is not None
    before = dict(tiny_model().model.named_parameters())
    for key, weight in resumed.copies.reference.parameters.items():
        assert torch.equal(weight, before[key]), key


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_goes_on_exactly_where_its_checkpoint_was_made(tmp_path: Path, name: str) -> None:
    start(tmp_path)
    chosen = config(tmp_path / "step-000000-a", **OBJECTIVES[name])
    straight = Run(chosen)
    for _ in range(3):
        straight.step()
    # Step 3 is between two refreshes.
    folder = straight.checkpoint(tmp_path)
    rows = [straight.step() for _ in range(3)]

    resumed = Run(chosen, folder)
    assert [resumed.step() for _ in range(3)] == rows

    for ours, theirs in zip(
        [straight.loaded.model, *(c.logprobs.model for c in straight.copies.moving.values())],
        [resumed.loaded.model, *(c.logprobs.model for c in resumed.copies.moving.values())],
        strict=True,
    ):
        expected = ours.state_dict()
        for key, tensor in theirs.state_dict().items():
            assert torch.equal(tensor, expected[key]), key


def test_a_copy_that_a_checkpoint_lacks_starts_from_the_checkpoints_policy(tmp_path: Path) -> None:
    start(tmp_path)
    plain = Run(config(tmp_path / "step-000000-a"))
    plain.step()
    lagged = {"proximal": {"type": "lagged", "every": 2}}
    resumed = Run(config(tmp_path / "step-000000-a", **lagged), plain.checkpoint(tmp_path))
    assert resumed.step()["train/proximal_kl"] == pytest.approx(0, abs=1e-9)


def test_a_copy_of_another_model_is_refused(tmp_path: Path) -> None:
    start(tmp_path)
    run = Run(config(tmp_path / "step-000000-a"))
    other = {"lagged": {"weight": torch.zeros(2)}}
    made = replace(capture(state_of(run.loaded, run.optimizers)), copies=other)
    folder = write_checkpoint(tmp_path / "other", made, lambda: None)
    with pytest.raises(UnusableCheckpoint, match=r"lagged\.safetensors has other weights than"):
        Run(config(folder, proximal={"type": "lagged"}), folder)


def test_only_the_copies_that_the_objective_needs_are_loaded(tmp_path: Path) -> None:
    copies = Run(start(tmp_path)).copies
    assert copies == Copies()


def test_the_size_of_a_checkpoint_includes_its_copies() -> None:
    loaded = tiny_model()
    optimizers = Optimizers(loaded.model, AdamW())
    plain = capture(state_of(loaded, optimizers))
    copied = replace(plain, copies={"lagged": {"weight": torch.zeros(5)}})
    assert copied.size == plain.size + 5 * 4


def test_frozen_weights_are_held_in_the_type_of_the_passes(tmp_path: Path) -> None:
    start(tmp_path)
    path = tmp_path / "step-000000-a"
    held = {}
    for name, reference in {
        "frozen": {"type": "frozen"},
        "ema": {"type": "ema", "rate": 0.1},
    }.items():
        asked = config(path, kl={"type": "k3", "reference": reference})
        half = asked.model.model_copy(update={"dtype": "bfloat16"})
        asked = asked.model_copy(update={"model": half})
        policy = TokenLogprobs(tiny_model().model)
        copies = load_copies(asked, CopiedPolicy(policy, ALONE), str(path), str(path))
        assert copies.reference is not None
        held[name] = {weight.dtype for weight in copies.reference.parameters.values()}
    assert held == {"frozen": {torch.bfloat16}, "ema": {torch.float32}}


def test_a_reference_may_be_another_model_that_knows_the_same_tokens(tmp_path: Path) -> None:
    start(tmp_path)
    base, other = str(tmp_path / "step-000000-a"), tmp_path / "other"
    wide = make_model(TINY.model_copy(update={"hidden_size": 64}), 1)
    wide.model.save_pretrained(other)
    wide.tokenizer.save_pretrained(other)
    policy = tiny_model()

    def copies(reference: dict[str, Any]) -> Copies:
        asked = config(tmp_path, kl={"type": "k2", "reference": {"path": "run:x", **reference}})
        logprobs, where = TokenLogprobs(policy.model), Scorers(reference=str(other))
        return load_copies(
            asked, CopiedPolicy(logprobs, ALONE, None, policy.tokenizer), base, base, where
        )

    found = copies({"type": "frozen"}).reference
    assert found is not None
    assert found.following is None
    assert found.parameters["model.embed_tokens.weight"].shape[1] == 64
    said = "model.embed_tokens.weight is 22 × 64 there and 22 × 32 in the policy: set algorithm.kl"
    with pytest.raises(UnusableModel, match=said):
        copies({"type": "ema", "rate": 0.1})
    policy.tokenizer.add_tokens(["ö"])
    said = r"algorithm.kl.reference.path .*another tokenizer than the policy.*no 'ö'"
    with pytest.raises(UnusableModel, match=said):
        copies({"type": "frozen"})
