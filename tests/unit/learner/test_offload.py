"""Models other than the policy: their devices, and what offloading leaves unchanged."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from learner import shared_gpu
from learner.checkpoints.captured import capture
from learner.distributed import Ranks
from learner.errors import RunCannotGoOn
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.placement.offload import Offload, UnusableDevice, offloads, place, present
from learner.model.reference_policies import Copies, Following, PolicyCopy
from learner.model.value_model import TokenValues, TrainedCritic
from learner.objective.compose import Objective
from learner.objective.value_loss import Moments
from learner.optim.optimizers import Optimizers
from learner.shared_gpu import TrainingGPU, changing, still, training_gpu
from learner.state import TrainingProgress, TrainingState
from learner.step import train_batch
from services.contracts.config import ConfigError, RLConfig, parse_config
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.critic import Critic as CriticConfig
from services.contracts.config.optimizer import AdamW
from services.contracts.config.training import Training
from services.runtime.gpu_handover import Handover
from tests.unit.learner.policies import random_samples, state_of, tensor, tiny_critic, tiny_model
from tests.unit.learner.unigrams import ALONE

KEY = "placement.critic"


def rank(number: int, here: int) -> Ranks:
    return Ranks(number, here, torch.device("cuda", number), local_size=here)


def test_the_same_device_is_the_ranks_own() -> None:
    assert place(KEY, "same", rank(1, 2)) == torch.device("cuda", 1)


def test_only_what_is_named_is_offloaded() -> None:
    training = Training(offload=["critic"])
    assert offloads("critic", training, rank(1, 2))
    assert not offloads("optimizer", training, rank(1, 2))


def test_on_a_cpu_there_is_nothing_to_offload_to() -> None:
    assert not offloads("critic", Training(offload=["critic"]), ALONE)


@pytest.mark.parametrize(
    ("placement", "number", "here", "device"),
    [("cuda:1", 0, 1, 1), ("cuda:0", 0, 1, 0), ("cuda:2", 0, 2, 2), ("cuda:2", 1, 2, 3)],
)
def test_of_several_ranks_each_has_a_device_of_its_own(
    placement: str, number: int, here: int, device: int
) -> None:
    found = place(KEY, placement, rank(number, here), devices=4)
    assert found == torch.device("cuda", device)


@pytest.mark.parametrize(
    ("placement", "here", "devices", "said"),
    [
        ("cuda:2", 1, 2, "placement.critic wants cuda:2, and this host has cuda:0 to cuda:1"),
        ("cuda:1", 1, 1, "placement.critic wants cuda:1, and this host has only cuda:0: name"),
        ("cuda:0", 1, 0, "placement.critic wants cuda:0, and this host has no GPU: name another"),
        ("cuda:2", 2, 3, "wants cuda:2 to cuda:3, one for each rank, and this host has cuda:0 to"),
        ("cuda:1", 2, 8, "on which another rank trains its policy: with 2 ranks on this host the"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    placement: str, here: int, devices: int, said: str
) -> None:
    with pytest.raises(UnusableDevice, match=said):
        place(KEY, placement, rank(0, here), devices)


@pytest.mark.parametrize(
    ("changes", "path", "said"),
    [
        (
            {"placement": {"reference": "cpu"}},
            "placement.reference",
            "'cpu' is no device: choose same, or cuda:0 and so on; training.offload keeps a model",
        ),
        (
            {"placement": {"reference": "cuda:1"}},
            "",
            "placement.reference cuda:1 places a model that this run does not load: leave it out, "
            "or set algorithm.kl",
        ),
        ({"placement": {"critic": "cuda:1"}}, "", "or set algorithm.critic"),
        ({"placement": {"lagged": "cuda:1"}}, "", "or set algorithm.proximal.type to lagged"),
        (
            {"training": {"offload": ["lagged"]}},
            "",
            "training.offload lagged is a model that this run does not load: leave it out, or set "
            "algorithm.proximal.type to lagged",
        ),
        (
            {
                "algorithm": {"kl": {"type": "k3"}},
                "training": {"offload": ["reference"]},
                "placement": {"reference": "cuda:1"},
            },
            "",
            "on the policy's device, and placement.reference is cuda:1: leave one out",
        ),
        (
            {
                "optimizer": {"type": "adamw", "in_backward": True, "max_grad_norm": None},
                "training": {"offload": ["optimizer"]},
            },
            "",
            "optimizer.in_backward updates in the backward pass, for which the optimizer's state",
        ),
    ],
)
def test_what_cannot_be_placed_or_offloaded_is_refused(
    changes: dict[str, Any], path: str, said: str
) -> None:
    raw = {
        "model": {"path": "org/model"},
        "data": {"dataset": "d"},
        "rewards": [{"verifier": "math"}],
        **changes,
    }
    with pytest.raises(ConfigError) as refused:
        parse_config(raw)
    ((key, sentence),) = refused.value.problems
    assert key == path
    assert said in sentence


def storage(value: torch.Tensor) -> int:
    return value.untyped_storage().nbytes()


def test_offloaded_tensors_have_storage_only_while_present() -> None:
    weight = tensor(1, 2, 3)
    offload = Offload(lambda: [weight])
    assert storage(weight) == 0
    with present([offload], changed=True):
        assert weight.tolist() == [1, 2, 3]
        weight[0] = 5
    assert storage(weight) == 0
    with present([offload], changed=False):
        assert weight.tolist() == [5, 2, 3]
        weight[0] = 7  # not kept
    with present([offload], changed=False):
        assert weight.tolist() == [5, 2, 3]


def test_what_comes_into_being_while_it_is_used_is_kept() -> None:
    state: list[torch.Tensor] = []
    offload = Offload(lambda: state)
    with present([offload], changed=True):
        state.append(tensor(4))
    assert storage(state[0]) == 0
    with present([offload], changed=True):
        assert state[0].tolist() == [4]


class Everything:
    """A policy with a reference that moves, a lagged copy and a critic; offloaded or not."""

    def __init__(self, offload: bool) -> None:
        self.loaded, valued = tiny_model(), tiny_critic()
        self.optimizers = Optimizers(self.loaded.model, AdamW(lr=1e-2))
        self.copies = Copies(copied(Following(rate=0.5), offload), copied(Following(2), offload))
        optimizers = Optimizers(valued, AdamW(lr=1e-2))
        self.critic = TrainedCritic(
            valued, TokenValues(valued), optimizers, CriticConfig(), Moments()
        )
        self.offloads: tuple[Offload, ...] = ()
        if offload:
            self.critic.offloaded_weights = (Offload(valued.parameters),)
            self.critic.offloaded_state = (Offload(lambda: optimizers.state().values()),)
            self.offloads = (Offload(lambda: self.optimizers.state().values()),)

    def state(self, progress: TrainingProgress | None = None) -> TrainingState:
        found = state_of(self.loaded, self.optimizers, self.copies, self.critic, progress)
        found.offloads = self.offloads
        return found

    def train(self, steps: int) -> list[dict[str, float]]:
        algorithm = Algorithm.model_validate(
            {
                "proximal": {"type": "lagged", "every": 2},
                "kl": {"type": "k1_in_reward"},
                "advantage": {"type": "gae"},
                "critic": {},
                "epochs_per_batch": 2,
            }
        )
        found = []
        for step in range(1, steps + 1):
            metrics = train_batch(
                self.state(),
                [random_samples(groups=3, per_group=3, seed=step)] * 2,
                Objective(algorithm, 0.8, 12),
                MicroBatches(ALONE, 60),
                lambda _: 1.0,
            )
            self.copies.after_step(step, self.loaded.model)
            found.append(metrics)
        return found

    def captured(self) -> dict[str, dict[str, torch.Tensor]]:
        state = TrainingProgress("r", 3, 3, [("a", 0)], "base")
        made = capture(self.state(state))
        assert made.critic is not None
        return {
            **made.copies,
            "policy": made.weights,
            "optimizer": made.optimizer,
            "critic": made.critic.weights,
            "critic's optimizer": made.critic.optimizer,
        }


def copied(following: Following, offload: bool) -> PolicyCopy:
    model = tiny_model().model.requires_grad_(False)
    kept = Offload(model.parameters) if offload else None
    return PolicyCopy(TokenLogprobs(model), following, kept)


def test_offloading_changes_nothing_that_is_trained_measured_or_kept() -> None:
    plain, offloaded = Everything(False), Everything(True)
    assert plain.train(3) == offloaded.train(3)
    expected, found = plain.captured(), offloaded.captured()
    assert found.keys() == expected.keys()
    for name, tensors in found.items():
        assert tensors.keys() == expected[name].keys()
        for key, value in tensors.items():
            assert torch.equal(value, expected[name][key]), (name, key)


def test_tensors_on_the_host_while_vllm_has_the_gpu_return_unchanged(
    tmp_path: Path,
) -> None:
    plain, turns = Everything(False), Everything(False)
    for one in (plain, turns):
        one.copies.teacher = PolicyCopy(TokenLogprobs(tiny_model().model.requires_grad_(False)))
        # The reference of a run with adapters.
        one.loaded.model.get_input_embeddings().requires_grad_(False)
    # On the host by itself: `training.offload` names the critic.
    turns.critic.offloaded_weights = (Offload(turns.critic.model.parameters),)
    gpu = TrainingGPU(Handover(tmp_path, "gpu"), moves=True)
    gpu.holds(lambda: changing(turns.state()), lambda: still(turns.state()))
    for _ in range(2):
        assert gpu.take()
        assert plain.train(1) == turns.train(1)
        gpu.leave()
        state = turns.state()
        assert state.copies.reference is not None
        assert state.copies.lagged is not None
        assert state.copies.teacher is not None
        of_all = (
            state.loaded.model.parameters(),
            state.optimizers.state().values(),
            state.copies.reference.logprobs.parameters(),
            state.copies.lagged.logprobs.parameters(),
            state.copies.teacher.logprobs.parameters(),
            turns.critic.model.parameters(),
            turns.critic.optimizers.state().values(),
        )
        assert [sum(map(storage, tensors)) for tensors in of_all] == [0] * 7
    assert gpu.take()
    expected, found = plain.captured(), turns.captured()
    for name, tensors in found.items():
        for key, value in tensors.items():
            assert torch.equal(value, expected[name][key]), (name, key)
    gpu.close()
    assert sum(map(storage, turns.loaded.model.parameters())) == 0


def never() -> bool:
    return False


def test_a_learner_whose_run_should_end_does_not_wait_forever_for_a_hanging_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ASKING_SECONDS", "ENDING_SECONDS", "PATIENCE_SECONDS"):
        monkeypatch.setattr(shared_gpu, name, 0.0)
    vllm = Handover(tmp_path, "gpu")
    assert vllm.begin_to_train(lambda: True)
    # The user cancels the run while the learner waits already.
    asked = iter([False, True])
    gpu = TrainingGPU(Handover(tmp_path, "gpu"), ends=lambda: next(asked))
    with capture_logs() as logs:
        assert not gpu.take()
    assert [entry["event"] for entry in logs] == ["the learner waits for its GPU"]
    vllm.close()
    assert gpu.take()
    gpu.close()


SLEEPS = {
    "model": {"path": "m"},
    "data": {"dataset": "d"},
    "rewards": [{"verifier": "exact"}],
    "rollout": {"vllm": {"sleeps": True}},
}


def test_a_run_that_fails_says_why_and_leaves_its_gpu_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config(SLEEPS)
    assert isinstance(config, RLConfig)

    def broken(gpu: TrainingGPU) -> None:
        raise RuntimeError("CUDA error")

    def fail() -> None:
        with training_gpu(config, ALONE, tmp_path, never) as gpu:
            assert gpu.take()
            raise RunCannotGoOn("no gradient")

    with monkeypatch.context() as patched:
        patched.setattr(TrainingGPU, "_free", broken)
        with pytest.raises(RunCannotGoOn, match="no gradient"):
            fail()
    with training_gpu(config, ALONE, tmp_path, never) as gpu:
        worker = Handover(tmp_path / "gpu-locks", "cpu")
        assert not worker.wanted
        assert gpu.take()
        assert worker.wanted
    asyncio.run(worker.begin_to_sample())
    worker.close()


def test_only_a_learner_of_one_rank_takes_turns_with_vllm(tmp_path: Path) -> None:
    config = parse_config(SLEEPS)
    assert isinstance(config, RLConfig)
    with (
        pytest.raises(RunCannotGoOn, match="start the learner with one rank"),
        training_gpu(config, rank(0, 2), tmp_path, never),
    ):
        pass


def test_while_the_policy_trains_nothing_that_is_offloaded_has_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything = Everything(True)
    sizes: list[int] = []

    def measure(*_: Any) -> None:
        assert everything.copies.reference is not None
        assert everything.copies.lagged is not None
        sizes.append(
            sum(map(storage, everything.copies.reference.logprobs.parameters()))
            + sum(map(storage, everything.copies.lagged.logprobs.parameters()))
            + sum(map(storage, everything.critic.model.parameters()))
            + sum(map(storage, everything.critic.optimizers.state().values()))
        )

    everything.optimizers.parts[0].register_step_pre_hook(measure)
    everything.train(2)
    assert sizes == [0] * 4
