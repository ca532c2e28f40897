"""The plan of the ranks' passes, by the memory of their GPUs, equals the estimate of the
submission."""

from pathlib import Path
from typing import Any

import pytest
import torch

from learner.distributed import Ranks
from learner.model import pass_plan
from learner.model.pass_plan import agreed_plan, known_model, plan_for
from services.contracts.config import RLConfig, parse_config
from services.contracts.config.model import PretrainedModel
from services.contracts.devices import GPUDevice, LearnerDevices
from services.estimate.fit import estimate_run
from services.estimate.inputs import Model, Worker
from services.estimate.model_shape import shape_of
from tests.unit.estimate.known import QWEN3_8B

GB = 10**9
GPU = GPUDevice(uuid="GPU-1", name="NVIDIA H100 80GB HBM3", memory=80 * GB)
EIGHT = LearnerDevices(ranks=8, gpus=[GPU] * 8)


def config(**training: Any) -> RLConfig:
    parsed = parse_config(
        {
            "model": {"path": "org/m"},
            "data": {"dataset": "d"},
            "rewards": [{"verifier": "math"}],
            "training": training,
        }
    )
    assert isinstance(parsed, RLConfig)
    return parsed


def qwen() -> Model:
    shape = shape_of(QWEN3_8B)
    assert shape is not None
    return Model(shape, half=True)


@pytest.mark.parametrize("memory", [80, 141, 192, 400])
def test_the_learner_does_what_the_estimate_says(memory: int) -> None:
    gpu = GPU.model_copy(update={"memory": memory * GB})
    devices = LearnerDevices(ranks=8, gpus=[gpu] * 8)
    plan = plan_for(config(), qwen(), devices, memory * GB)
    said = estimate_run(config(), qwen(), devices, ()).learner.how
    assert said.startswith(plan.parallel)
    assert ("computed again" in said) == plan.checkpointing


def test_a_plan_says_whether_activations_are_kept_and_why() -> None:
    assert plan_for(config(), qwen(), EIGHT, 80 * GB).activations.startswith(
        "computed again in the backward pass: else a rank would need 1"
    )
    roomy = plan_for(config(), qwen(), EIGHT, 400 * GB).activations
    assert roomy.startswith("kept: a rank needs ")
    assert roomy.endswith(" of 400 GB")
    never = plan_for(config(activation_checkpointing=False), qwen(), EIGHT, 80 * GB)
    assert never.activations == "kept: training.activation_checkpointing is set"
    unknown = plan_for(config(parallel="fsdp"), None, EIGHT, 80 * GB)
    assert (unknown.parallel, unknown.checkpointing) == ("fsdp", False)


def test_a_cpu_recomputes_activations_only_if_the_config_says_so() -> None:
    ranks = Ranks(0, 1, torch.device("cpu"))
    by_itself = agreed_plan(config(), ranks, qwen, list)
    assert (by_itself.parallel, by_itself.checkpointing) == ("ddp", False)
    assert agreed_plan(config(activation_checkpointing=True), ranks, qwen, list).checkpointing


def test_a_rank_next_to_vllm_has_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is a GPU by name only."""
    gpu = GPU.model_copy(update={"memory": 200 * GB})
    monkeypatch.setattr(pass_plan, "gpu_of", lambda device: gpu)
    # Another run's vLLM holds some of the 120 GB for a while.
    found = iter((90 * GB, 119 * GB))
    monkeypatch.setattr(pass_plan, "available", lambda device: next(found))
    ranks = Ranks(0, 1, torch.device("cuda", 0))
    thin = config().model_copy(
        update={"model": PretrainedModel.model_validate({"path": "org/m", "lora": {}})}
    )
    alone = agreed_plan(thin, ranks, qwen, list)
    beside = agreed_plan(thin, ranks, qwen, lambda: [Worker((gpu,))])
    assert (alone.checkpointing, beside.checkpointing) == (False, True)
    assert list(found) == []
    # If the vLLM does not end, training is attempted anyway.
    monkeypatch.setattr(pass_plan, "available", lambda device: 90 * GB)
    monkeypatch.setattr(pass_plan, "MEMORY_WAIT_SECONDS", 0.0)
    assert agreed_plan(thin, ranks, qwen, lambda: [Worker((gpu,))]) == beside


def test_widths_are_read_from_a_folder_under_the_names_of_its_architecture(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=22, n_embd=16, n_layer=3, n_head=2)).save_pretrained(
        tmp_path
    )
    found = known_model(str(tmp_path), PretrainedModel(path=str(tmp_path)))
    assert found is not None
    assert (found.shape.hidden, found.shape.layers, found.shape.query) == (16, 3, 16)
    assert not found.half
