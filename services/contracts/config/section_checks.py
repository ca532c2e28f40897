"""Combinations of a run's sections that cannot work, refused with the way out."""

from services.contracts.config.base import refuse_if
from services.contracts.config.data import Data
from services.contracts.config.episodes import Episode, OwnEpisode, Sessions, SingleTurn, Tools
from services.contracts.config.evaluation import Evaluation
from services.contracts.config.lora import MUON_BESIDE_ADAPTERS
from services.contracts.config.model import PretrainedModel
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.copies import FrozenReference, LaggedProximal
from services.contracts.config.objective.terms import (
    LoglinearProximal,
    MaskCorrection,
    NoKL,
    ReinforceLoss,
    ReverseKL,
    TruncateCorrection,
)
from services.contracts.config.optimizer import MuonAdamW, Optimizer
from services.contracts.config.placement import Placement
from services.contracts.config.rewards import RewardComponent, named
from services.contracts.config.rollout import Rollout, Sampling
from services.contracts.config.training import Training
from services.contracts.config.vllm import TOOL_PARSER_OPTIONS


def check_adapters(
    model: PretrainedModel,
    optimizer: Optimizer,
    algorithm: Algorithm,
    placement: Placement,
    training: Training,
) -> None:
    """Refuse options that conflict with LoRA."""
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
        reference.path is not None,
        f"algorithm.kl.reference.path {reference.path} is a model besides the policy, and with "
        "model.lora the reference is the policy without its adapters: leave path out, or leave "
        "model.lora out",
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


def check_live(
    rollout: Rollout,
    algorithm: Algorithm,
    training: Training,
    rewards: list[RewardComponent],
    evaluation: Evaluation | None,
) -> None:
    """Check the options that `data.source: sessions` needs: applications open the sessions, and
    send all rewards."""
    refuse_if(
        not isinstance(rollout.episode, Sessions),
        "data.source sessions needs rollout.episode: sessions: set it",
    )
    refuse_if(
        evaluation is not None,
        "evaluation: with data.source sessions nobody answers held-out rows: leave it out; "
        "`headrace eval` evaluates checkpoints",
    )
    refuse_if(
        bool(rewards),
        "rewards: with data.source sessions applications say all rewards: set rewards to []",
    )
    refuse_if(
        algorithm.samples_generated != 1,
        f"algorithm.samples_per_prompt {algorithm.samples_generated}: with data.source "
        "sessions each session is a group of its own: set it to 1, leave best_of out, and set "
        "advantage.type to running_mean",
    )
    refuse_if(
        training.epochs is not None or training.max_steps is None,
        "training.epochs counts passes over a dataset, and with data.source sessions there is "
        "none: set training.max_steps instead",
    )
    refuse_if(
        training.max_steps == 0,
        "training.max_steps 0 trains nothing: set it to 1 or more",
    )


def check_sessions(
    data: Data,
    sampling: Sampling,
    rollout: Rollout,
    algorithm: Algorithm,
    rewards: list[RewardComponent],
    evaluation: Evaluation | None,
) -> None:
    """Refuse options that conflict with outside agents (`rollout.episode: sessions`)."""
    episodes = [rollout.episode, *(dataset.episode for dataset in data.mix)]
    refuse_if(
        bool(data.mix) and any(isinstance(episode, Sessions) for episode in episodes),
        "data.mix: agents of rollout.episode sessions take the prompts of one dataset: leave "
        "mix out, or choose another episode for all datasets",
    )
    if not isinstance(rollout.episode, Sessions):
        return
    refuse_if(
        data.chat_template == "none",
        "data.chat_template none: the model's chat template writes the messages of agents "
        "(rollout.episode sessions); set it to auto: a model without one gets plain text",
    )
    refuse_if(
        data.curriculum is not None,
        "data.curriculum: agents of rollout.episode sessions take prompts in their order: "
        "leave it out",
    )
    refuse_if(
        evaluation is not None,
        "evaluation: agents outside answer the prompts of rollout.episode sessions, so workers "
        "have nothing to evaluate: leave it out (over a recipe that has one: --set "
        "evaluation=null), and let your agent answer a test set through "
        "/v1/chat/completions with model RUN@latest (docs/agents.md)",
    )
    refuse_if(
        any(reward.dense for reward in rewards),
        "rewards: dense rewards belong to parts of one answer, and with rollout.episode "
        "sessions verifiers read the last answer of several: leave dense out",
    )
    refuse_if(
        algorithm.router.replay,
        "algorithm.router.replay: expert routing is not recorded in sessions: set it to false",
    )
    refuse_if(
        sampling.ignore_eos,
        "sampling.ignore_eos: an answer in a session ends at its end of sequence: leave it out",
    )
    refuse_if(
        rollout.straggler_deadline is not None,
        "rollout.straggler_deadline: workers do not hold the groups of rollout.episode "
        "sessions: leave it out; rollout.episode.idle_seconds ends idle sessions",
    )


def check_tools(data: Data, sampling: Sampling, rollout: Rollout) -> None:
    """Check the options that `rollout.episode: tools` needs, for one dataset."""
    if not isinstance(rollout.episode, Tools):
        return
    refuse_if(
        not rollout.vllm.parses_tools,
        "rollout.episode tools: this run has no parser for the model's tool calls: set "
        f"{TOOL_PARSER_OPTIONS}",
    )
    refuse_if(
        data.chat_template == "none",
        "data.chat_template none: with rollout.episode tools the chat template describes "
        "the tools: leave it at auto",
    )
    refuse_if(
        sampling.ignore_eos,
        "sampling.ignore_eos: an answer of rollout.episode tools ends at its end of "
        "sequence: leave it out",
    )


def check_format(sampling: Sampling, rollout: Rollout) -> None:
    """Check that answers with a schema are answers to one prompt."""
    refuse_if(
        sampling.json_schema is not None and not isinstance(rollout.episode, SingleTurn),
        "sampling.json_schema is for answers to one prompt, and rollout.episode is "
        f"{rollout.episode.type}: leave one of the two out; a call of a session has its own "
        "response_format",
    )


def check_teacher(algorithm: Algorithm, sampling: Sampling) -> None:
    """Check that a dataset whose answers a server scores is sampled at temperature 1, from all
    tokens."""
    if algorithm.teacher is None or algorithm.teacher.endpoint is None:
        return
    refuse_if(
        sampling.temperature != 1,
        f"sampling.temperature {sampling.temperature:g}: algorithm.teacher.endpoint "
        "scores at temperature 1: set it to 1, or name algorithm.teacher.path",
    )
    refuse_if(
        sampling.cuts,
        "sampling.top_k: algorithm.teacher.endpoint scores over the whole vocabulary: "
        "leave top_k and top_p out, or name algorithm.teacher.path",
    )


def check_unrewarded(
    data: Data, algorithm: Algorithm, evaluation: Evaluation | None, episodes: list[Episode]
) -> None:
    """Refuse options that need rewards in a run without rewards."""
    given = all(isinstance(episode, Sessions | OwnEpisode) for episode in episodes)
    refuse_if(
        not (given or isinstance(algorithm.advantage, ReverseKL)),
        f"rewards is empty, and advantage {algorithm.advantage.type} learns from them: "
        "name a verifier, or an episode that gives rewards itself",
    )
    evaluated = evaluation.sets if evaluation else []
    for key, needs in (
        ("evaluation", any(not held_out.rewards for held_out in evaluated)),
        ("data.filter", data.filter is not None),
    ):
        refuse_if(
            needs,
            f"{key} needs rewards, and there are none: name a verifier, or leave {key} out",
        )


def check_limits(algorithm: Algorithm, rollout: Rollout, training: Training) -> None:
    """Check that a group fits vLLM, and that the critic's warm-up fits the run."""
    samples, most = algorithm.samples_generated, rollout.vllm.max_num_seqs
    key = "best_of.generation_size" if algorithm.best_of else "samples_per_prompt"
    refuse_if(
        most is not None and samples > most,
        f"algorithm.{key} {samples} exceeds rollout.vllm.max_num_seqs {most}: lower the one, or "
        "raise the other",
    )
    refuse_if(
        rollout.vllm.ngram_tokens > 0 and algorithm.router.replay,
        "rollout.vllm.ngram_tokens: expert routing is recorded of sampled tokens, not of "
        "guesses; set it to 0, or algorithm.router.replay to false",
    )
    critic, steps = algorithm.critic, training.max_steps
    warmup = critic.warmup_steps if critic else 0
    refuse_if(
        bool(steps) and warmup >= (steps or 0),
        f"algorithm.critic.warmup_steps {warmup} leaves the policy none of training.max_steps "
        f"{steps}: lower it",
    )


def check_steps(training: Training, evaluation: Evaluation | None) -> None:
    """Check that the run does something."""
    refuse_if(
        training.max_steps == 0 and evaluation is None,
        "training.max_steps 0 trains nothing, and there is no evaluation: name its dataset "
        "(evaluation.dataset), or set max_steps to 1 or more",
    )


def check_correction(algorithm: Algorithm, rollout: Rollout) -> None:
    """Check that the correction of stale samples can do something."""
    refuse_if(
        isinstance(algorithm.proximal, LoglinearProximal)
        and isinstance(algorithm.correction, TruncateCorrection | MaskCorrection)
        and not isinstance(algorithm.loss, ReinforceLoss)
        and rollout.max_staleness == 0,
        f"algorithm.correction.type {algorithm.correction.type} does nothing with proximal "
        "loglinear and rollout.max_staleness 0: no token is a version old, so its weight is "
        "always 1: set algorithm.proximal.type to recompute, or correction.type to none",
    )


def check_evaluation(evaluation: Evaluation | None, rollout: Rollout) -> None:
    """Check that vLLM can answer the held-out sets, and that their rewards depend only on earlier
    ones."""
    longest, most = rollout.vllm.max_model_len, rollout.vllm.max_num_seqs
    for key, held_out in (evaluation.by_key if evaluation else {}).items():
        refuse_if(
            longest is not None and (held_out.max_tokens or 0) >= longest,
            f"{key}.max_tokens {held_out.max_tokens} leaves no room for a prompt in "
            f"rollout.vllm.max_model_len {longest}: lower the one, or raise the other",
        )
        refuse_if(
            most is not None and (held_out.samples or 1) > most,
            f"{key}.samples {held_out.samples} exceeds rollout.vllm.max_num_seqs {most}: lower the "
            "one, or raise the other",
        )
        earlier: list[str] = []
        for name, reward in named(held_out.rewards or []).items():
            gate = reward.only_if.component if reward.only_if else None
            refuse_if(
                gate is not None and gate not in earlier,
                f"{key}.rewards: {name!r} has only_if.component {gate!r}, which is no earlier "
                "one of these rewards: name an earlier one, or leave only_if out",
            )
            earlier.append(name)


def check_placement(placement: Placement, algorithm: Algorithm, training: Training) -> None:
    """Check that only models which the run loads have a device, or are moved off it."""
    lagged = isinstance(algorithm.proximal, LaggedProximal)
    for name, loaded, way in (
        ("reference", not isinstance(algorithm.kl, NoKL), "algorithm.kl.type to k2"),
        ("lagged", lagged, "algorithm.proximal.type to lagged"),
        (
            "critic",
            algorithm.critic is not None,
            "algorithm.critic to {} with algorithm.advantage.type gae",
        ),
        (
            "teacher",
            algorithm.loads_teacher,
            "algorithm.teacher.path, with algorithm.advantage.type reverse_kl",
        ),
    ):
        device = getattr(placement, name)
        refuse_if(
            device != "same" and not loaded,
            f"placement.{name} {device} places a model that this run does not load: leave it "
            f"out, or set {way}",
        )
        offloaded = name in training.offload
        refuse_if(
            offloaded and not loaded,
            f"training.offload {name} is a model that this run does not load: leave it out, or "
            f"set {way}",
        )
        refuse_if(
            offloaded and device != "same",
            f"training.offload {name} makes room on the policy's device, and placement.{name} "
            f"is {device}: leave one out",
        )


def check_in_backward(
    optimizer: Optimizer, algorithm: Algorithm, training: Training, rollout: Rollout
) -> None:
    """Check the options that an optimizer with steps in the backward pass needs."""
    optimizers: dict[str, Optimizer] = {"optimizer": optimizer}
    if algorithm.critic is not None:
        optimizers["algorithm.critic.optimizer"] = algorithm.critic.optimizer
    key = next((key for key, optimizer in optimizers.items() if optimizer.in_backward), None)
    if key is None:
        return
    refuse_if(
        "optimizer" in training.offload,
        f"{key}.in_backward updates in the backward pass, for which the optimizer's state has "
        "to be on the device: leave it out, or optimizer out of training.offload",
    )
    longest, budget = rollout.vllm.max_model_len, training.tokens_per_microbatch
    refuse_if(
        longest is None,
        f"{key}.in_backward needs minibatches that fit one micro-batch, and the length of a "
        "sequence has no limit: set rollout.vllm.max_model_len",
    )
    prompts = -(-algorithm.prompts_per_step // algorithm.minibatches)
    samples = prompts * algorithm.samples_per_prompt
    refuse_if(
        samples * (longest or 0) > budget,
        f"{key}.in_backward cannot add up the gradients of several micro-batches, and a "
        f"minibatch of {samples} sequences of up to {longest} tokens does not fit "
        f"training.tokens_per_microbatch {budget}: raise that or algorithm.minibatches, or leave "
        "in_backward out",
    )
    stops = algorithm.early_stop_ratio is not None or algorithm.early_stop_kl is not None
    refuse_if(
        optimizer.in_backward and stops,
        "optimizer.in_backward updates before algorithm.early_stop_ratio or early_stop_kl can "
        "skip the update: set one or the other",
    )
