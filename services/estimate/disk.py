"""The files that a run keeps on the data volume."""

from services.contracts.config import RLConfig
from services.contracts.groups.rollout import AUTO_TOKENS, TOKEN_BYTES
from services.estimate.answer import DiskNeed
from services.estimate.host_memory import checkpoint_bytes, published_bytes
from services.estimate.inputs import PROMPT, Config, Model
from services.estimate.rank_bytes import FLOAT32

PAYLOAD_FILE = 4 << 20
"""Bytes above which a group is stored outside Redis: the default of HEADRACE_PAYLOAD_FILE_BYTES."""
MASKED = 90
"""Bytes of a token's sampling mask with `sampling.top_k` of 50, at most (docs/architecture.md)."""
PUBLISHED = 3
"""Versions on disk: the newest, the one that workers load, and the one before."""


def disk_need(config: Config, model: Model, free: int | None) -> DiskNeed:
    """Estimate the files of a run. A run that only evaluates keeps nothing that counts. `free`:
    bytes of the data volume that are free for runs; None if unknown."""
    parts = {}
    if config.training.max_steps != 0:
        parts["checkpoints"] = _kept(config) * checkpoint_bytes(config, model)
        if isinstance(config, RLConfig):
            parts["versions"] = PUBLISHED * published_bytes(config, model)
            parts["groups"] = payload_files(config, model)
    needed = sum(parts.values())
    fits = None if free is None else needed <= free
    keep = config.training.keep_checkpoints
    advice = (
        "make room on the data volume (`headrace rm RUN` deletes a run that is over), or keep "
        f"fewer checkpoints (training.keep_checkpoints is {keep})"
    )
    return DiskNeed(
        needed=needed,
        parts={name: size for name, size in parts.items() if size},
        memory=free,
        fits=fits,
        advice=[advice] if fits is False else [],
    )


def rollout_bytes(config: RLConfig) -> int:
    """Bytes that a step's rollouts take at most, from completions of all their tokens."""
    algorithm, share = config.algorithm, config.rollout.keep_share
    samples = algorithm.prompts_per_step * algorithm.samples_per_prompt
    tokens = samples * (config.max_tokens + PROMPT)
    kept = min(tokens, AUTO_TOKENS) if isinstance(share, str) else share * tokens
    return int(kept * TOKEN_BYTES)


def _kept(config: Config) -> int:
    """Return the most checkpoints that exist at a time: the kept ones and one that is being
    written. A supervised run also keeps the checkpoint with the lowest loss. Those of
    `training.keep_every` count if the number of steps is known."""
    training = config.training
    kept = training.keep_checkpoints + (1 if isinstance(config, RLConfig) else 2)
    if training.max_steps is None:
        return kept
    if training.keep_every:
        kept += training.max_steps // training.keep_every
    return min(kept, -(-training.max_steps // training.checkpoint_every) + 1)


def payload_files(config: RLConfig, model: Model) -> int:
    """Bytes of finished groups outside of Redis: those that the next checkpoint contains, and those
    of the checkpoint that is being written."""
    shape, algorithm = model.shape, config.algorithm
    routed = 0
    if config.algorithm.router.replay:
        routed = shape.layers * shape.experts_used * (1 if shape.experts <= 256 else 2)
    taught = FLOAT32 if algorithm.teacher and algorithm.teacher.endpoint else 0
    masked = MASKED if config.sampling.top_k else 0
    token = (2 if shape.vocabulary <= 1 << 16 else 4) + FLOAT32 + routed + taught + masked
    samples = algorithm.samples_per_prompt
    group = samples * config.max_tokens * token + PROMPT * routed
    if group <= PAYLOAD_FILE:
        return 0
    every = config.training.checkpoint_every
    steps = min(every, config.training.max_steps or every)
    return 2 * steps * algorithm.prompts_per_step * group
