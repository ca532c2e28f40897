"""Names and values of other systems: each hint leads to a config that is accepted."""

import copy
from typing import Any

import pytest

from headrace.other_systems.table import ROWS, OtherNames
from headrace.other_systems.values import OTHER_VALUES, Values
from services.contracts.config import RLConfig, SFTConfig, parse_config
from services.contracts.config.parsing.type_tags import key_paths
from tests.unit.contracts.configs import RL, SFT, refusal
from tests.unit.contracts.test_ways_out import changed

KEYS = {*key_paths(RLConfig), *key_paths(SFTConfig)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.names.split()[0])
def test_a_row_leads_to_existing_keys_or_gives_a_reason(row: OtherNames) -> None:
    assert set(row.keys.split()) <= KEYS
    assert row.keys or row.note
    assert not {name for name in row.names.split() if name in KEYS}
    row.note.format(value=64)


def test_no_name_is_in_two_rows() -> None:
    names = [name for row in ROWS for name in row.names.split()]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    "values",
    [*(row.values for row in ROWS if row.values), *OTHER_VALUES.values()],
    ids=[*(row.names.split()[0] for row in ROWS if row.values), *OTHER_VALUES],
)
def test_the_settings_that_a_value_stands_for_are_accepted(
    values: Values,
) -> None:
    for settings in values.values():
        keys = {key: value for key, value in (settings or {}).items() if key}
        of_pairs = any(key.startswith("objective") for key in keys)
        parse_config(changed(SFT | {"model": {"path": "m"}} if of_pairs else RL, keys))


@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        (
            {"algorithm": {"ppo_mini_batch_size": 64}},
            "algorithm.ppo_mini_batch_size",
            "did you mean 'algorithm.minibatches'? It is a count, not a size: prompts_per_step "
            "divided by 64",
        ),
        (
            {"algorithm": {"epsilon": 0.2}},
            "algorithm.epsilon",
            "did you mean 'algorithm.loss.epsilon_low' and 'algorithm.loss.epsilon_high'? Set "
            "both, to the same value.",
        ),
        (
            {"loss_type": "dr_grpo"},
            "loss_type",
            "'dr_grpo' is algorithm.loss.type: ppo, algorithm.aggregation.type: constant here; it "
            "is Dr. GRPO with algorithm.advantage.type: group_mean (scale_rewards: false); recipe "
            "dr_grpo has both, and algorithm.loss.epsilon_low and epsilon_high are your epsilon",
        ),
        (
            {"loss_agg_mode": "seq-mean-token-sum"},
            "loss_agg_mode",
            "constant also divides by sampling.max_tokens, so loss and gradient are that many "
            "times smaller: divide optimizer.max_grad_norm by sampling.max_tokens, too",
        ),
        (
            {"loss_agg_mode": "seq-mean-token-sum-norm"},
            "loss_agg_mode",
            "constant here; it divides by sampling.max_tokens, as verl does unless",
        ),
        (
            {"vllm_importance_sampling_mode": "sequence_mask"},
            "vllm_importance_sampling_mode",
            "algorithm.correction.low: 0.0, algorithm.correction.level: sequence here; the weight "
            "of a sequence is the geometric mean",
        ),
        (
            {"data": {"dataset": "d", "truncation": "left"}},
            "data.truncation",
            "'left' is data.long_prompts: cut here",
        ),
        (
            {"data": {"dataset": "d", "truncation": "middle"}},
            "data.truncation",
            "'middle' has no counterpart here: see 'data.long_prompts'",
        ),
        (
            {"sync_ref_model": True},
            "sync_ref_model",
            "algorithm.kl.reference: {type: refresh, every: 512} here; every is your "
            "ref_model_sync_steps",
        ),
        (
            {"lr_scheduler_type": "cosine_with_restarts"},
            "lr_scheduler_type",
            "'cosine_with_restarts' has no counterpart here: see 'schedule.type'",
        ),
        # A section of another system in a section that exists.
        (
            {"algorithm": {"kl_ctrl": {"kl_coef": 0.001}}},
            "algorithm.kl_ctrl.kl_coef",
            "did you mean 'algorithm.kl.beta'? Set algorithm.kl.type, too",
        ),
        (
            {"algorithm": {"kl_ctrl": {"type": "adaptive", "horizon": 10_000}}},
            "algorithm.kl_ctrl.type",
            "algorithm.advantage.type: global_whiten, algorithm.kl.adaptive: {} here",
        ),
        (
            {"trainer": {"scheduler": {"type": "cosine"}}},
            "trainer.scheduler.type",
            "did you mean 'schedule.type'?",
        ),
        (
            {"rollouts": {"val_kwargs": {"temperature": 0.6}}},
            "rollouts",
            "did you mean 'rollout'?",
        ),
        (
            {"actor_rollout_ref": {"rollout": {"val_kwargs": {"temperature": 0.6}}}},
            "actor_rollout_ref.rollout.val_kwargs.temperature",
            "did you mean 'evaluation.temperature'?",
        ),
        (
            {"critic": {"model": {"path": "m"}}},
            "critic.model.path",
            "did you mean 'algorithm.critic.path'?",
        ),
        (
            {"orchestrator": {"sampling": {"max_tokens": 512}}},
            "orchestrator.sampling.max_tokens",
            "did you mean 'sampling.max_tokens'?",
        ),
        (
            {"reward_model": {"model": {"path": "m"}}},
            "reward_model.model.path",
            "did you mean 'rewards'?",
        ),
        (
            {"trainer": {"nnodes": 1, "esi_redundant_time": 0, "ray": {"port": 1}}},
            "trainer",
            "unknown section; nothing here is called esi_redundant_time, ray.port: leave them out",
        ),
        ({"kl_loss_type": "low_var_kl"}, "kl_loss_type", "is algorithm.kl.type: k3 here"),
        ({"kl_loss_type": "abs"}, "kl_loss_type", "'abs' has no counterpart here"),
        (
            {"use_kl_loss": True},
            "use_kl_loss",
            "true is algorithm.kl.type: k3 here; algorithm.kl.beta is your kl_loss_coef",
        ),
        (
            {"vllm_importance_sampling_correction": True},
            "vllm_importance_sampling_correction",
            "is algorithm.proximal.type: recompute, algorithm.correction.type: truncate here",
        ),
        (
            {"mask_truncated_completions": True},
            "mask_truncated_completions",
            "did you mean 'algorithm.shaping.mask_truncated'?",
        ),
        (
            {"steps_per_generation": 8},
            "steps_per_generation",
            "'algorithm.minibatches'? It counts optimizer steps of a batch: 8 divided by",
        ),
        ({"warmup_ratio": 0.1}, "warmup_ratio", "It counts steps: 0.1 times the steps of the run"),
        (
            {"optim": "paged_adamw_32bit"},
            "optim",
            "is optimizer.type: adamw, training.offload: [optimizer] here",
        ),
        (
            {"sampling": {"min_tokens": 4}},
            "sampling.min_tokens",
            "No least length is forced: shorter answers get algorithm.shaping.reward_penalty.",
        ),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "unknown key; leave it out: the"),
        # A section of another system: the critic's learning rate is not the policy's.
        (
            {"critic": {"optim": {"lr": 1e-5}}},
            "critic.optim.lr",
            "did you mean 'algorithm.critic.optimizer.lr'?",
        ),
        (
            {"evaluation": {"dataset": "d", "n": 4}},
            "evaluation.n",
            "did you mean 'evaluation.samples'?",
        ),
        (
            {"divide_advantage_by_std": True},
            "divide_advantage_by_std",
            "is algorithm.advantage.type: group_zscore here",
        ),
        ({"data": {"dataset": "d", "file": "x"}}, "data.file", "did you mean 'data.dataset'?"),
        ({"model": {"path": "m", "name": "x"}}, "model.name", "did you mean 'model.path'?"),
        ({"algorithm": {"kl": {"coef": 0.1}}}, "algorithm.kl.coef", "Set algorithm.kl.type, too"),
        ({"lora": {"r": 16}}, "lora.r", "did you mean 'model.lora.rank'?"),
        # The number of a reward is no section, so datasets of a mixture are not meant.
        ({"rewards": [{"type": "math"}]}, "rewards.0.type", "known here: clip, dense, name, only"),
        (
            {"sampling": {"top_k": -1}},
            "sampling.top_k",
            "-1 stands for all tokens in other systems: set it to 0",
        ),
        # A value of another system at a key that exists.
        (
            {"algorithm": {"loss": {"type": "grpo"}}},
            "algorithm.loss",
            "type 'grpo' does not exist ('grpo' is algorithm.loss.type: ppo, "
            "algorithm.advantage.type: group_zscore here); there is ppo,",
        ),
        (
            {"algorithm": {"kl": {"type": "low_var_kl"}}},
            "algorithm.kl",
            "('low_var_kl' is algorithm.kl.type: k3 here)",
        ),
        (
            {"algorithm": {"correction": {"type": "tis"}}},
            "algorithm.correction",
            "algorithm.correction.type: truncate here)",
        ),
        (
            {"model": {"path": "m", "dtype": "bf16"}},
            "model.dtype",
            ", not 'bf16'; 'bf16' is model.dtype: bfloat16 here",
        ),
        (
            {"schedule": {"type": "cosine_with_min_lr"}},
            "schedule.type",
            "is schedule.type: cosine, schedule.floor: 0.1 here",
        ),
    ],
)
def test_a_hint_converts_the_value_or_says_how_it_is_converted(
    sections: dict[str, Any], path: str, said: str
) -> None:
    assert said in refusal(RL | sections)[path]


@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        ({"train_batch_size": 64}, "train_batch_size", "did you mean 'training.rows_per_step'?"),
        ({"training": {"batch_size": 8}}, "training.batch_size", "'training.rows_per_step'?"),
        ({"loss_type": "sigmoid"}, "loss_type", "'sigmoid' is objective.type: dpo here"),
        ({"loss_type": "ipo"}, "loss_type", "'ipo' has no counterpart here: see 'objective.type'"),
    ],
)
def test_a_hint_for_a_supervised_run_leads_to_its_own_keys(
    sections: dict[str, Any], path: str, said: str
) -> None:
    assert said in refusal(SFT | sections)[path]


def test_keys_of_the_run_itself_and_of_the_chat_template_are_led_to_their_place() -> None:
    named = "unknown key; leave it out: headrace submit --name names a run"
    asked = {"enable_thinking": False, "name": "x", "run": {"name": "x"}, "evaluation": "heldout"}
    said = refusal(RL | asked)
    assert said["name"] == said["run.name"] == named
    assert said["enable_thinking"] == (
        "unknown key; did you mean 'data.chat_template_kwargs'? It takes the variables of the chat "
        "template: {enable_thinking: false}"
    )
    assert "not 'heldout' (did you mean evaluation.dataset?)" in said["evaluation"]
    assert refusal(RL | {"rewards": "math"})["rewards"] == (
        "must be a list, not 'math' (did you mean rewards.0.verifier?)"
    )


def test_a_name_leads_a_supervised_run_to_its_own_keys() -> None:
    said = refusal(SFT | {"max_seq_length": 512, "num_generations": 8})
    assert said["max_seq_length"].startswith("unknown key; did you mean 'data.max_seq_len'?")
    assert said["num_generations"] == (
        "unknown key; 'algorithm.samples_per_prompt' is a key of runs of type rl alone: leave it "
        "out"
    )
    # A value of an RL run may have no meaning in a supervised run.
    truncated = refusal(SFT | {"truncation": "left"})["truncation"]
    assert truncated == "unknown key; did you mean 'data.overlong'?"


@pytest.mark.parametrize(
    "keys",
    [
        "disable_dropout cast_lm_head_to_fp32 model_init_kwargs log_completions tools packing "
        "generation_kwargs dataset_kwargs padding_free label_smoothing completion_only_loss tf32",
        "lora_task_type lora_bias use_dora use_rslora modules_to_save bnb_4bit_quant_type",
        "actor.checkpoint.save_contents rollout.multi_turn.enable rollout.engine_kwargs "
        "rollout.multi_turn.tool_config_path data.return_raw_chat actor.loss_scale_factor "
        "actor.fsdp_config.forward_prefetch rollout.agent.num_workers data.custom_cls.path",
        "deepspeed_enable_sleep zpg save_value_network use_ds_universal_ckpt wandb_org perf",
        "trainer_gpu_ids orchestrator.buffer.easy_threshold zero_truncated_completions",
        "actor.reward_bias actor.eps_clip_higher saver.freq_steps cluster.n_nodes gconfig.stop",
        "finetune.gradient_clipping_threshold max_lag world.replicas eval_every_n_versions",
        "random_state fast_inference float8_kv_cache sequence_len val_set_size xformers_attention",
    ],
    ids=["TRL", "peft", "verl", "OpenRLHF", "prime-rl", "AReaL", "PipelineRL", "unsloth, axolotl"],
)
def test_the_keys_of_a_system_have_hints(keys: str) -> None:
    for key in keys.split():
        said = one_key(key)
        assert "known here" not in said, key
        assert "unknown section" not in said, key


def one_key(key: str) -> str:
    """What a run of RL says to a key."""
    raw: dict[str, Any] = copy.deepcopy(RL)
    section = raw
    *above, name = key.split(".")
    for part in above:
        section = section.setdefault(part, {})
    section[name] = True
    (said,) = refusal(raw).values()
    return said


def test_a_value_of_any_size_is_quoted_in_part() -> None:
    said = refusal(RL | {"ppo_mini_batch_size": "9{x}" * 1_000, "kl_loss_type": "z" * 1_000})
    assert all(len(sentence) < 500 for sentence in said.values())
