"""The settings that values of other systems stand for, as data: `low_var_kl` is `kl.type: k3`.

None: nothing here does what the value does. `NOTE`, in place of a key, says what still differs.
"""

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
"""Values by key path."""
Values = Mapping[str, Settings | None]
"""Settings by a value's name, in lower case and with `_` for `-`."""
NOTE = ""

GRPO: Settings = {"algorithm.advantage.type": "group_zscore"}
CONSTANT: Settings = {"algorithm.aggregation.type": "constant"}
DR_GRPO = "recipe dr_grpo has both"
GAE: Settings = {"algorithm.advantage.type": "gae", "algorithm.critic": {}}
REINFORCE_PP: Settings = {"algorithm.advantage.type": "global_whiten"}
REINFORCE_PP_BASELINE: Settings = {**REINFORCE_PP, "algorithm.advantage.baseline": True}
RECOMPUTE: Settings = {"algorithm.proximal.type": "recompute"}
TIS: Settings = {**RECOMPUTE, "algorithm.correction.type": "truncate"}
ICEPOP: Settings = {**RECOMPUTE, "algorithm.correction.type": "mask"}
MASK: Settings = {
    **ICEPOP,
    "algorithm.correction.low": 0.0,
    NOTE: "algorithm.correction.high is the cap",
}
SEQUENCE: Settings = {"algorithm.correction.level": "sequence"}
PRODUCT: Settings = {
    **SEQUENCE,
    NOTE: "the weight of a sequence is the geometric mean of its tokens' here, and their product "
    "there, so its bounds need other values",
}
ADVANTAGES: Values = {
    "gae": GAE,
    "grpo": GRPO,
    "group_norm": GRPO,
    "dr_grpo": {
        "algorithm.advantage.type": "group_mean",
        NOTE: "it is Dr. GRPO with algorithm.aggregation.type: constant, which OpenRLHF does not "
        f"set; {DR_GRPO}",
    },
    "rloo": {"algorithm.advantage.type": "leave_one_out"},
    "reinforce": REINFORCE_PP,
    "reinforce_plus_plus": REINFORCE_PP,
    "reinforce++": REINFORCE_PP,
    "reinforce_baseline": REINFORCE_PP_BASELINE,
    "reinforce_plus_plus_baseline": REINFORCE_PP_BASELINE,
    "remax": None,
    "opo": None,
    "gpg": None,
    "grpo_passk": None,
}
LOSSES: Values = {
    "grpo": {"algorithm.loss.type": "ppo", "algorithm.aggregation.type": "sequence_mean"},
    "dapo": {"algorithm.loss.type": "ppo", "algorithm.aggregation.type": "token_mean"},
    "bnpo": {"algorithm.loss.type": "ppo", "algorithm.aggregation.type": "token_mean"},
    "dr_grpo": {
        "algorithm.loss.type": "ppo",
        **CONSTANT,
        NOTE: "it is Dr. GRPO with algorithm.advantage.type: group_mean (scale_rewards: false); "
        f"{DR_GRPO}, and algorithm.loss.epsilon_low and epsilon_high are your epsilon",
    },
    "luspo": None,
    "vespo": None,
    "geo_mean": None,
    "vanilla": {"algorithm.loss.type": "ppo"},
    "gpg": {"algorithm.loss.type": "reinforce"},
    "pg": {"algorithm.loss.type": "reinforce"},
    "clip_cov": None,
    "kl_cov": None,
    # Losses over pairs of answers, in supervised runs.
    "sigmoid": {"objective.type": "dpo"},
    "hinge": None,
    "ipo": None,
    "nll": {"objective.type": "likelihood"},
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
    "seq_mean_token_sum": {
        **CONSTANT,
        NOTE: "constant also divides by sampling.max_tokens, so loss and gradient are that many "
        "times smaller: divide optimizer.max_grad_norm by sampling.max_tokens, too",
    },
    "seq_mean_token_sum_norm": {
        **CONSTANT,
        NOTE: "it divides by sampling.max_tokens, as verl does unless loss_scale_factor is set",
    },
}
CORRECTIONS: Values = {
    "tis": TIS,
    "mis": ICEPOP,
    "icepop": ICEPOP,
    "token_truncate": TIS,
    "token_mask": MASK,
    "sequence_truncate": {**TIS, **PRODUCT},
    "sequence_mask": {**MASK, **PRODUCT},
    "sequence": {**TIS, **PRODUCT},
    "geometric": {**ICEPOP, **SEQUENCE},
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
    "constant_with_warmup": {
        "schedule.type": "constant",
        NOTE: "schedule.warmup_steps is your warmup_steps",
    },
    "warmup_stable_decay": {"schedule.type": "wsd"},
    "cosine_with_restarts": None,
    "inverse_sqrt": None,
    "polynomial": None,
    "reduce_lr_on_plateau": None,
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
        "dr_grpo": CONSTANT,
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
    name = value_name(value)
    if not isinstance(value, str | bool) or name not in values:
        return ""
    settings = values[name]
    shown = name if isinstance(value, bool) else repr(value[:100])
    if settings is None:
        return f"{shown} has no counterpart here"
    note = f"; {settings[NOTE]}" if NOTE in settings else ""
    return f"{shown} is {in_words(settings)} here{note}"


def value_name(value: Any) -> str:
    """The name of `value` in a table of values."""
    return str(value).lower().replace("-", "_")


def in_words(settings: Settings) -> str:
    """`settings` as a config has them: `algorithm.loss.type: ppo`."""
    return ", ".join(f"{key}: {_written(value)}" for key, value in settings.items() if key)


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value).replace("'", "")
