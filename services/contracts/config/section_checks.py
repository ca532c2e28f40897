"""Combinations of a run's sections that cannot work, refused with the way out."""

from services.contracts.config.base import refuse_if
from services.contracts.config.evaluation import Evaluation
from services.contracts.config.lora import MUON_BESIDE_ADAPTERS
from services.contracts.config.model import PretrainedModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.copies import FrozenReference, LaggedProximal
from services.contracts.config.objective.terms import NoKL
from services.contracts.config.optimizer import MuonAdamW, Optimizer
from services.contracts.config.placement import Placement
from services.contracts.config.rewards import named
from services.contracts.config.rollout import Rollout
from services.contracts.config.training import Training


def check_adapters(
    model: PretrainedModel,
    optimizer: Optimizer,
    algorithm: Algorithm,
    placement: Placement,
    training: Training,
) -> None:
    """What LoRA leaves no room for."""
    if model.lora is None:
        return
    refuse_if(
        isinstance(optimizer, MuonAdamW),
        MUON_BESIDE_ADAPTERS,
    )
    refuse_if(
        isinstance(algorithm.proximal, LaggedProximal),
        "algorithm.proximal.type lagged needs a second copy of the whole model, and model.lora "
        "has one: use sampler or recompute, or leave model.lora out",
    )
    kl = algorithm.kl
    reference = FrozenReference() if isinstance(kl, NoKL) else kl.reference
    refuse_if(
        not isinstance(reference, FrozenReference),
        f"algorithm.kl.reference.type {reference.type} needs a second copy of the whole model; "
        "with model.lora the reference is the model without its adapters: leave it at frozen, "
        "or leave model.lora out",
    )
    refuse_if(
        placement.reference != "same",
        f"placement.reference {placement.reference}: with model.lora the reference is the "
        "policy without its adapters, on the policy's device: leave it out",
    )
    refuse_if(
        "reference" in training.offload,
        "training.offload reference: with model.lora the reference is the policy without its "
        "adapters, and takes no memory: leave it out",
    )


def check_evaluation(evaluation: Evaluation | None, rollout: Rollout) -> None:
    """Whether vLLM can answer the held-out sets, and their rewards depend on earlier ones alone."""
    longest, most = rollout.vllm.max_model_len, rollout.vllm.max_num_seqs
    for i, one in enumerate(evaluation.sets if evaluation else []):
        key = f"evaluation.more.{i - 1}" if i else "evaluation"
        refuse_if(
            longest is not None and (one.max_tokens or 0) >= longest,
            f"{key}.max_tokens {one.max_tokens} leaves no room for a prompt in "
            f"rollout.vllm.max_model_len {longest}",
        )
        refuse_if(
            most is not None and (one.samples or 1) > most,
            f"{key}.samples {one.samples} exceeds rollout.vllm.max_num_seqs {most}",
        )
        earlier: list[str] = []
        for name, reward in named(one.rewards or []).items():
            gate = reward.only_if.component if reward.only_if else None
            refuse_if(
                gate is not None and gate not in earlier,
                f"{key}.rewards: {name!r} has only_if.component {gate!r}, which is no earlier "
                "one of these rewards",
            )
            earlier.append(name)


def check_placement(placement: Placement, algorithm: Algorithm, training: Training) -> None:
    """Only models that the run loads have a device, or are moved off it."""
    lagged = isinstance(algorithm.proximal, LaggedProximal)
    for name, loaded, key in (
        ("reference", not isinstance(algorithm.kl, NoKL), "algorithm.kl"),
        ("lagged", lagged, "algorithm.proximal lagged"),
        ("critic", algorithm.critic is not None, "algorithm.critic"),
        ("teacher", algorithm.loads_teacher, "algorithm.teacher.path"),
    ):
        device = getattr(placement, name)
        refuse_if(
            device != "same" and not loaded,
            f"placement.{name} {device} places a model that this run does not load: leave it "
            f"out, or set {key}",
        )
        offloaded = name in training.offload
        refuse_if(
            offloaded and not loaded,
            f"training.offload {name} is a model that this run does not load: leave it out, or "
            f"set {key}",
        )
        refuse_if(
            offloaded and device != "same",
            f"training.offload {name} makes room on the policy's device, and placement.{name} "
            f"is {device}: leave one out",
        )


def check_in_backward(
    optimizer: Optimizer, algorithm: Algorithm, training: Training, rollout: Rollout
) -> None:
    """What an optimizer that steps in the backward pass needs."""
    optimizers: dict[str, Optimizer] = {"optimizer": optimizer}
    if algorithm.critic is not None:
        optimizers["algorithm.critic.optimizer"] = algorithm.critic.optimizer
    key = next((key for key, one in optimizers.items() if one.in_backward), None)
    if key is None:
        return
    refuse_if(
        "optimizer" in training.offload,
        f"{key}.in_backward updates in the backward pass, for which the optimizer's state has "
        "to be on the device: leave it out, or optimizer out of training.offload",
    )
    longest, room = rollout.vllm.max_model_len, training.tokens_per_microbatch
    refuse_if(
        longest is None,
        f"{key}.in_backward needs minibatches that fit one micro-batch, and the length of a "
        "sequence has no limit: set rollout.vllm.max_model_len",
    )
    prompts = -(-algorithm.prompts_per_step // algorithm.minibatches)
    samples = prompts * algorithm.samples_per_prompt
    refuse_if(
        samples * (longest or 0) > room,
        f"{key}.in_backward cannot add up the gradients of several micro-batches, and a "
        f"minibatch of {samples} sequences of up to {longest} tokens does not fit "
        f"training.tokens_per_microbatch {room}: raise that or algorithm.minibatches, or leave "
        "in_backward out",
    )
    stops = algorithm.early_stop_ratio is not None or algorithm.early_stop_kl is not None
    refuse_if(
        optimizer.in_backward and stops,
        "optimizer.in_backward updates before algorithm.early_stop_ratio or early_stop_kl can "
        "skip the update: set one or the other",
    )
