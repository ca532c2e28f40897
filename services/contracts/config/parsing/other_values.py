"""The settings that values of other systems stand for, as data: `low_var_kl` is `kl.type: k3`.

None: nothing here does what the value does.
"""

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
"""Values by key path."""
Values = Mapping[str, Settings | None]
"""Settings by a value's name, in lower case and with `_` for `-`."""

GRPO: Settings = {"algorithm.advantage.type": "group_zscore"}
DR_GRPO: Settings = {
    "algorithm.advantage.type": "group_mean",
    "algorithm.aggregation.type": "constant",
}
GAE: Settings = {"algorithm.advantage.type": "gae", "algorithm.critic": {}}
REINFORCE_PP: Settings = {"algorithm.advantage.type": "global_whiten"}
REINFORCE_PP_BASELINE: Settings = {**REINFORCE_PP, "algorithm.advantage.baseline": True}
RECOMPUTE: Settings = {"algorithm.proximal.type": "recompute"}
TIS: Settings = {**RECOMPUTE, "algorithm.correction.type": "truncate"}
ICEPOP: Settings = {**RECOMPUTE, "algorithm.correction.type": "mask"}
SEQUENCE: Settings = {"algorithm.correction.level": "sequence"}
ADVANTAGES: Values = {
    "gae": GAE,
    "grpo": GRPO,
    "group_norm": GRPO,
    "dr_grpo": DR_GRPO,
    "rloo": {"algorithm.advantage.type": "leave_one_out"},
    "reinforce": REINFORCE_PP,
    "reinforce_plus_plus": REINFORCE_PP,
    "reinforce++": REINFORCE_PP,
    "reinforce_baseline": REINFORCE_PP_BASELINE,
    "reinforce_plus_plus_baseline": REINFORCE_PP_BASELINE,
    "remax": None,
}
LOSSES: Values = {
    "grpo": {"algorithm.loss.type": "ppo", "algorithm.aggregation.type": "sequence_mean"},
    "dapo": {"algorithm.loss.type": "ppo", "algorithm.aggregation.type": "token_mean"},
    "bnpo": {"algorithm.loss.type": "ppo", "algorithm.aggregation.type": "token_mean"},
    "dr_grpo": {"algorithm.loss.type": "ppo", "algorithm.aggregation.type": "constant"},
    "vanilla": {"algorithm.loss.type": "ppo"},
    "gpg": {"algorithm.loss.type": "reinforce"},
    "pg": {"algorithm.loss.type": "reinforce"},
    "clip_cov": None,
    "kl_cov": None,
}
KLS: Values = {
    "kl": {"algorithm.kl.type": "k1"},
    "mse": {"algorithm.kl.type": "k2"},
    "low_var_kl": {"algorithm.kl.type": "k3"},
    "abs": None,
    "full": None,
}
AGGREGATIONS: Values = {
    "seq_mean_token_mean": {"algorithm.aggregation.type": "sequence_mean"},
    "seq_mean_token_sum": {"algorithm.aggregation.type": "constant"},
    "seq_mean_token_sum_norm": {"algorithm.aggregation.type": "constant"},
}
CORRECTIONS: Values = {
    "tis": TIS,
    "mis": ICEPOP,
    "icepop": ICEPOP,
    "token_truncate": TIS,
    "token_mask": ICEPOP,
    "sequence_truncate": {**TIS, **SEQUENCE},
    "sequence_mask": {**ICEPOP, **SEQUENCE},
}
OPTIMIZERS: Values = {
    "adam": {"optimizer.type": "adamw"},
    "adamw_torch": {"optimizer.type": "adamw"},
    "adamw_torch_fused": {"optimizer.type": "adamw"},
    "adamw_hf": {"optimizer.type": "adamw"},
    "adamw_bnb_8bit": {"optimizer.type": "adamw_8bit"},
    "paged_adamw_8bit": {"optimizer.type": "adamw_8bit"},
    "pagedadamw8bit": {"optimizer.type": "adamw_8bit"},
    # Paged state moves to the host as memory runs out; here all state does, between two updates.
    "paged_adamw": {"optimizer.type": "adamw", "training.offload": ["optimizer"]},
    "paged_adamw_32bit": {"optimizer.type": "adamw", "training.offload": ["optimizer"]},
    "pagedadamw": {"optimizer.type": "adamw", "training.offload": ["optimizer"]},
    "adafactor": None,
    "sgd": None,
}
SCHEDULES: Values = {
    "cosine_with_min_lr": {"schedule.type": "cosine", "schedule.floor": 0.1},
    "constant_with_warmup": {"schedule.type": "constant", "schedule.warmup_steps": 10},
    "warmup_stable_decay": {"schedule.type": "wsd"},
    "inverse_sqrt": None,
    "polynomial": None,
}
DTYPES: Values = {
    "bf16": {"model.dtype": "bfloat16"},
    "torch.bfloat16": {"model.dtype": "bfloat16"},
    "fp16": {"model.dtype": "bfloat16"},
    "fp32": {"model.dtype": "float32"},
    "torch.float32": {"model.dtype": "float32"},
}

OTHER_VALUES: Mapping[str, Values] = {
    "algorithm.advantage.type": ADVANTAGES,
    "algorithm.loss.type": {**LOSSES, "grpo": {"algorithm.loss.type": "ppo", **GRPO}},
    "algorithm.aggregation.type": {
        **AGGREGATIONS,
        "dr_grpo": {"algorithm.aggregation.type": "constant"},
        "grpo": {"algorithm.aggregation.type": "sequence_mean"},
        "dapo": {"algorithm.aggregation.type": "token_mean"},
    },
    "algorithm.correction.type": CORRECTIONS,
    "algorithm.kl.type": KLS,
    "optimizer.type": OPTIMIZERS,
    "schedule.type": SCHEDULES,
    "model.dtype": DTYPES,
}
"""The settings that a value of another system stands for, at a key that exists here."""


def meant_by(values: Values, value: Any) -> str:
    """The sentence that says what `value` is here; '' if `values` does not have it."""
    name = str(value).lower().replace("-", "_")
    if not isinstance(value, str | bool) or name not in values:
        return ""
    settings = values[name]
    if settings is None:
        return f"{str(value)[:100]!r} has no counterpart here"
    return f"{str(value)[:100]!r} is {in_words(settings)} here"


def in_words(settings: Settings) -> str:
    """`settings` as a config has them: `algorithm.loss.type: ppo`."""
    return ", ".join(f"{key}: {_written(value)}" for key, value in settings.items())


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value).replace("'", "")
