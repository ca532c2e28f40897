"""The options by which a finished run's checkpoints are asked. Pure."""

from typing import Any

from services.contracts.config import RLConfig
from services.contracts.config.episodes import SingleTurn
from services.contracts.config.trust import parse_trusted
from services.contracts.records import RunRecord

ASKED = ("system", "template", "chat_template", "chat_template_kwargs")
"""Keys of `data` that say how a prompt is written."""
LONGEST_ANSWER = 1 << 20
"""Tokens of an answer of a supervised run, which names no limit: the context and the gateway do."""


def served_config(run: RunRecord, trusted: bool, serves_only: bool) -> RLConfig:
    """Return the config by which a checkpoint of `run` is served: the run's own, if it sampled; the
    defaults otherwise. `serves_only`: on a worker that only serves, whose vLLM shares no GPU with
    a learner. Raises ConfigError."""
    config = parse_trusted(run.config, trusted)
    if not isinstance(config, RLConfig):
        config = _of_supervised(config.data.model_dump(), config.model, run.id)
    algorithm, rollout = config.algorithm, config.rollout
    options: dict[str, Any] = {"episode": SingleTurn()}
    if serves_only:
        alone = {"sleeps": False, "gpu_memory_utilization": None}
        options["vllm"] = rollout.vllm.model_copy(update=alone)
    return config.model_copy(
        update={
            "algorithm": algorithm.model_copy(update={"teacher": None}),
            "rollout": rollout.model_copy(update=options),
        }
    )


def _of_supervised(data: dict[str, Any], model: Any, run: str) -> RLConfig:
    return RLConfig.model_validate(
        {
            "model": {
                "path": f"run:{run}",
                "trust_remote_code": getattr(model, "trust_remote_code", False),
            },
            "data": {"dataset": "none", **{key: data[key] for key in ASKED}},
            "rewards": [{"verifier": "exact"}],
            "sampling": {"max_tokens": LONGEST_ANSWER},
        }
    )
