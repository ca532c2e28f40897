"""The names that other systems have for the keys of a run config, as data.

The systems are TRL, verl, OpenRLHF, torchtune, AReaL and prime-rl. A row says which keys here stand
for some names, how a value is converted, and what single values mean.
"""

from typing import NamedTuple

from headrace.other_systems.table_text import TABLE
from headrace.other_systems.values import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    DTYPES,
    GAE,
    GRPO,
    KLS,
    LOSSES,
    NOTE,
    OPTIMIZERS,
    RECOMPUTE,
    REINFORCE_PP,
    SCHEDULES,
    TIS,
    Values,
)


class OtherNames(NamedTuple):
    """Names that other systems have for one thing."""

    names: str
    """Separated by spaces. `scheduler.type` is a `type` in a section `scheduler`."""
    keys: str = ""
    """The keys here that take the value, separated by spaces; '' if no key does."""
    note: str = ""
    """How the value is converted, with the user's as {value}; '' if it stays as it is."""
    values: Values = {}
    """The settings that a value stands for; None: nothing here does that."""


def _rows(table: str) -> list[OtherNames]:
    """Read a table: names up to an equals sign, keys behind it, then a note that is indented."""
    names = ""
    rows: list[OtherNames] = []
    for line in table.strip().splitlines():
        if line.startswith(" "):
            rows[-1] = rows[-1]._replace(note=f"{rows[-1].note} {line.strip()}".strip())
        elif not line.startswith("#"):
            more, equals, keys = line.partition("=")
            names += f" {more.strip()}"
            if equals:
                rows.append(OtherNames(names.strip(), keys.strip()))
                names = ""
    return rows


ROWS = (
    *_rows(TABLE),
    OtherNames("adv_estimator advantage_estimator", "algorithm.advantage.type", values=ADVANTAGES),
    OtherNames(
        "scale_rewards norm_adv_by_std_in_grpo divide_advantage_by_std",
        "algorithm.advantage.type",
        values={
            "true": GRPO,
            "group": GRPO,
            "false": {"algorithm.advantage.type": "group_mean"},
            "none": {"algorithm.advantage.type": "group_mean"},
            "batch": None,
            "mean": None,
        },
    ),
    OtherNames(
        "no_advantage_std_norm",
        "algorithm.advantage.type",
        values={"true": {"algorithm.advantage.type": "group_mean"}, "false": GRPO},
    ),
    OtherNames(
        "whiten_advantages adv_norm",
        "algorithm.advantage.whiten",
        values={
            "true": {**GAE, "algorithm.advantage.whiten": "batch"},
            "false": {**GAE, "algorithm.advantage.whiten": False},
        },
    ),
    OtherNames(
        "group_adv_norm",
        "algorithm.advantage.whiten",
        values={
            "true": {**REINFORCE_PP, "algorithm.advantage.whiten": "group"},
            "false": {**REINFORCE_PP, "algorithm.advantage.whiten": "batch"},
        },
    ),
    OtherNames(
        "dynamic_filtering filter_groups filter_groups.enable",
        "algorithm.dynamic_sampling",
        values={"true": {"algorithm.dynamic_sampling": {}}},
    ),
    OtherNames(
        "loss_type policy_loss policy_loss_type loss_mode",
        "algorithm.loss.type objective.type",
        values=LOSSES,
    ),
    OtherNames(
        "importance_sampling_level ratio_type",
        "algorithm.loss.type",
        values={
            "token": {"algorithm.loss.type": "ppo"},
            "sequence": {"algorithm.loss.type": "gspo"},
        },
    ),
    OtherNames("loss_agg_mode", "algorithm.aggregation.type", values=AGGREGATIONS),
    OtherNames(
        "vllm_importance_sampling_correction enable_vllm_is_correction tis",
        "algorithm.correction.type",
        values={"true": TIS, "false": {"algorithm.correction.type": "none"}},
    ),
    OtherNames(
        "vllm_importance_sampling_mode rollout_is rollout_rs",
        "algorithm.correction.type",
        values={**CORRECTIONS, "token": TIS, "true": TIS},
    ),
    OtherNames(
        "use_decoupled_loss recompute_logprob",
        "algorithm.proximal.type",
        values={"true": RECOMPUTE, "false": {"algorithm.proximal.type": "sampler"}},
    ),
    OtherNames("kl_loss_type kl_estimator", "algorithm.kl.type", values=KLS),
    OtherNames(
        "kl_penalty",
        "algorithm.kl.type",
        "In the reward of each token it is k1_in_reward; k1, k2 and k3 go into the loss.",
        values={"kl": {**REINFORCE_PP, "algorithm.kl.type": "k1_in_reward"}},
    ),
    OtherNames(
        "use_kl_loss",
        "algorithm.kl.type",
        values={
            "true": {
                "algorithm.kl.type": "k3",
                NOTE: "algorithm.kl.beta is your kl_loss_coef (OpenRLHF: init_kl_coef)",
            },
            "false": {"algorithm.kl.type": "none"},
        },
    ),
    OtherNames(
        "use_kl_in_reward",
        "algorithm.kl.type",
        values={
            "true": {
                **REINFORCE_PP,
                "algorithm.kl.type": "k1_in_reward",
                NOTE: "algorithm.kl.beta is your kl_coef",
            },
            "false": {"algorithm.kl.type": "none"},
        },
    ),
    OtherNames(
        "kl_ctrl.type",
        "algorithm.kl.adaptive",
        values={
            "fixed": {"algorithm.kl.type": "k1_in_reward", **REINFORCE_PP},
            "adaptive": {
                "algorithm.kl.type": "k1_in_reward",
                **REINFORCE_PP,
                "algorithm.kl.adaptive": {},
            },
        },
    ),
    OtherNames(
        "use_adaptive_kl_ctl adaptive_kl_ctl",
        "algorithm.kl.adaptive",
        values={"true": {"algorithm.kl.type": "k3", "algorithm.kl.adaptive": {}}},
    ),
    OtherNames(
        "sync_ref_model",
        "algorithm.kl.reference.type",
        values={
            "true": {
                "algorithm.kl.type": "k3",
                "algorithm.kl.reference": {"type": "refresh", "every": 512},
                NOTE: "every is your ref_model_sync_steps, and the whole policy becomes the "
                "reference (ref_model_mixup_alpha 1); type ema mixes, after each step",
            },
        },
    ),
    OtherNames(
        "disable_value",
        "algorithm.critic",
        values={"true": {**REINFORCE_PP, "algorithm.critic": None}, "false": GAE},
    ),
    OtherNames(
        "truncation",
        "data.long_prompts data.overlong",
        values={
            "error": {
                "data.long_prompts": "drop",
                NOTE: "rows whose prompts are too long are left out and counted, and end no run",
            },
            "left": {"data.long_prompts": "cut"},
            "right": None,
            "middle": None,
        },
    ),
    OtherNames(
        "filter_overlong_prompts",
        "data.long_prompts data.overlong",
        values={"true": {"data.long_prompts": "drop"}},
    ),
    OtherNames(
        "apply_chat_template",
        "data.chat_template",
        values={"true": {"data.chat_template": "auto"}, "false": {"data.chat_template": "none"}},
    ),
    OtherNames(
        "shuffle shuffle_dataset",
        "data.order",
        values={"true": {"data.order": "shuffled"}, "false": {"data.order": "file"}},
    ),
    OtherNames("precision torch_dtype dtype", "model.dtype", values=DTYPES),
    OtherNames("use_peft use_lora", "model.lora", values={"true": {"model.lora": {}}}),
    OtherNames("bf16", "model.dtype", values={"true": {"model.dtype": "bfloat16"}}),
    OtherNames("fp16", "model.dtype", values={"true": {"model.dtype": "bfloat16"}}),
    OtherNames("optim optim.type optimizer_type", "optimizer.type", values=OPTIMIZERS),
    OtherNames(
        "lr_scheduler lr_scheduler_type lr_decay_style scheduler.type warmup_style",
        "schedule.type",
        values=SCHEDULES,
    ),
)
OTHER_NAMES = {name: row for row in ROWS for name in row.names.split()}
"""The row of each name that another system has."""


def row_of(path: list[str]) -> OtherNames | None:
    """The row of a name that another system has, with its section or alone."""
    # A key of no section may be meant for the run: `name` and `run.name` are the same.
    lower = [part.lower() for part in (path if len(path) > 1 else ["run", *path])]
    return OTHER_NAMES.get(".".join(lower[-2:])) or OTHER_NAMES.get(lower[-1])
