"""Configs that cannot work are refused with the way out; those that hardly do give a warning."""

import re
from typing import Any

import pytest

from services.contracts.config import parse_config
from tests.unit.contracts.configs import RL, SFT, refusal, rl

LORA = {"path": "m", "lora": {}}


@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        (
            {"algorithm": {"minibatches": 64}},
            "algorithm",
            "minibatches 64 exceeds prompts_per_step 32",
        ),
        ({"algorithm": {"samples_per_prompt": 1}}, "algorithm", "set samples_per_prompt to 2"),
        (
            {"rewards": [{"verifier": "math", "weight": 0}]},
            "",
            "all weights of rewards are 0, so every answer would earn 0",
        ),
        (
            {"algorithm": {"correction": {"type": "truncate"}}},
            "algorithm",
            "correction truncate does nothing with proximal sampler and loss ppo",
        ),
        (
            {"model": {"path": "org/model", "dtype": "float16"}},
            "model.dtype",
            "float16 has too small a range: without loss scaling, which the learner does not do",
        ),
        ({"sampling": {"top_p": 0.9}}, "sampling", "set top_k as well, for example to 100"),
        ({"sampling": {"stop_token_ids": [2, 2**63]}}, "sampling.stop_token_ids", "beyond 64 bits"),
        ({"rollout": {"lease_seconds": 1e306}}, "rollout.lease_seconds", "at most 2592000"),
        (
            {"rollout": {"episode": {"type": "sessions", "idle_seconds": 1e300}}},
            "rollout.episode.idle_seconds",
            "at most 2592000",
        ),
        ({"placement": {"reference": "cuda:\u0661"}}, "placement.reference", "is no device"),
        (
            {"model": {"path": "m", "lora": {"targets": [""]}}},
            "model.lora.targets.0",
            "1 character",
        ),
        (
            {"data": {"dataset": "d", "template": "{prompt}" * 17}},
            "data",
            "17 times; 16 is the most",
        ),
        ({"sampling": {"top_k": 1001}}, "sampling.top_k", "at most 1000"),
        ({"training": {"seed": -1}}, "training.seed", "at least 0"),
        ({"optimizer": {"lr": float("inf")}}, "optimizer.lr", "finite"),
        (
            {
                "algorithm": {
                    "proximal": {"type": "recompute"},
                    "correction": {"type": "mask", "low": 5, "high": 0.5},
                }
            },
            "algorithm.correction",
            "low 5.0 is not below high 0.5",
        ),
        (
            {"sampling": {"max_tokens": 64}, "rollout": {"vllm": {"max_model_len": 64}}},
            "",
            "leaves no room for a prompt in rollout.vllm.max_model_len 64",
        ),
        (
            {"sampling": {"max_tokens": 64}, "algorithm": {"shaping": {"overlong_buffer": 64}}},
            "",
            "overlong_buffer 64 is not below sampling.max_tokens 64",
        ),
        (
            {
                "sampling": {"max_tokens": 64},
                "algorithm": {"shaping": {"min_response_length": 65, "reward_penalty": -1}},
            },
            "",
            "min_response_length 65 exceeds sampling.max_tokens 64",
        ),
        (
            {
                "training": {"max_steps": 20},
                "algorithm": {"advantage": {"type": "gae"}, "critic": {"warmup_steps": 20}},
            },
            "",
            "warmup_steps 20 leaves the policy none of training.max_steps 20",
        ),
        (
            {
                "rollout": {"max_staleness": 0},
                "algorithm": {"proximal": {"type": "loglinear"}, "correction": {"type": "mask"}},
            },
            "",
            "correction.type mask does nothing with proximal loglinear and rollout.max_staleness 0",
        ),
        (
            {"model": {"path": "m", "lora": {}}, "optimizer": {"type": "muon"}},
            "",
            "optimizer.type muon is made for whole matrices",
        ),
        (
            {"model": LORA, "algorithm": {"proximal": {"type": "lagged"}}},
            "",
            "lagged needs a second copy of the whole model, and model.lora has one",
        ),
        (
            {
                "model": LORA,
                "algorithm": {"kl": {"type": "k3", "reference": {"type": "ema", "rate": 0.1}}},
            },
            "",
            "reference.type ema needs a second copy of the whole model",
        ),
        (
            {"model": LORA, "placement": {"reference": "cuda:1"}},
            "",
            "placement.reference cuda:1: with model.lora the reference is the policy without",
        ),
        ({"model": {"path": "m", "lora": {"rank": 513}}}, "model.lora.rank", "not 513"),
        ({"model": {"path": "m", "lora": {"rank": 0}}}, "model.lora.rank", "not 0"),
        ({"model": {"path": "m", "lora": {"alpha": 0}}}, "model.lora.alpha", "not 0"),
        (
            {"model": {"path": "m", "lora": {"targets": ["q_proj", "q_proj"]}}},
            "model.lora.targets",
            "targets names a layer twice",
        ),
        ({"model": {"path": "m", "lora": {"targets": []}}}, "model.lora.targets", "at least 1"),
        (
            {"rollout": {"vllm": {"extra": {"max_lora_rank": 8}}}},
            "rollout.vllm.extra",
            "extra may not set max-lora-rank",
        ),
        (
            {"rollout": {"vllm": {"quantization": "fp8_per_channel", "dtype": "float32"}}},
            "rollout.vllm",
            "vLLM makes fp8_per_channel of bfloat16 weights: leave dtype out",
        ),
        (
            {"rollout": {"vllm": {"extra": {"quantization": "fp8"}}}},
            "rollout.vllm.extra",
            "extra may not set quantization",
        ),
        (
            {
                "data": {"dataset": "d", "chat_template": "none"},
                "rollout": {"episode": {"type": "sessions"}},
            },
            "",
            "data.chat_template none: the model's chat template writes the messages of agents",
        ),
        (
            {"rollout": {"vllm": {"extra": {"default_chat_template_kwargs": {"a": 1}}}}},
            "rollout.vllm.extra",
            "by data.chat_template and data.chat_template_kwargs",
        ),
        (
            {"rollout": {"vllm": {"extra": {"speculative_config": {"model": "small"}}}}},
            "rollout.vllm.extra",
            "a draft model would keep its weights while the policy changes",
        ),
        (
            {
                "algorithm": {"router": {"replay": True}},
                "rollout": {"vllm": {"ngram_tokens": 4}},
            },
            "",
            "rollout.vllm.ngram_tokens: expert routing is recorded of sampled tokens",
        ),
        (
            {
                "algorithm": {"samples_per_prompt": 300},
                "rollout": {"vllm": {"max_num_seqs": 256}},
            },
            "",
            "algorithm.samples_per_prompt 300 exceeds rollout.vllm.max_num_seqs 256",
        ),
        (
            {
                "algorithm": {"best_of": {"generation_size": 300}},
                "rollout": {"vllm": {"max_num_seqs": 256}},
            },
            "",
            "algorithm.best_of.generation_size 300 exceeds rollout.vllm.max_num_seqs 256",
        ),
        ({"training": {"max_steps": 5, "epochs": 1}}, "training", "leave one out"),
        (
            {"placement": {"reference": "gpu1"}},
            "placement.reference",
            "'gpu1' is no device: choose same, or cuda:0 and so on; training.offload keeps",
        ),
        (
            {"rollout": {"vllm": {"dtype": "float16"}}},
            "rollout.vllm.dtype",
            "must be 'auto', 'float32' or 'bfloat16', not 'float16'",
        ),
        ({"data": {"dataset": "sums", "template": "{}"}}, "data", "lacks the placeholder"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_the_way_out(
    sections: dict[str, Any], path: str, said: str
) -> None:
    assert said in refusal(RL | sections)[path]


@pytest.mark.parametrize(
    "algorithm",
    [
        {"loss": {"type": "reinforce"}, "correction": {"type": "truncate"}},
        {"proximal": {"type": "recompute"}, "correction": {"type": "truncate"}},
        {"correction": {"type": "mask"}},
    ],
    ids=["reinforce weighs by all of π/μ", "recompute leaves w to correct", "a mask looks at ρ"],
)
def test_a_correction_that_changes_weights_is_accepted(algorithm: dict[str, Any]) -> None:
    assert rl(algorithm=algorithm).algorithm.correction.type == algorithm["correction"]["type"]


def test_adapters_are_trained_without_muon_in_a_supervised_run_too() -> None:
    adapters = {"path": "m", "lora": {}}
    said = refusal(SFT | {"model": adapters, "optimizer": {"type": "muon"}})
    assert "optimizer.type muon is made for whole matrices" in said[""]
    parse_config(SFT | {"model": adapters})
    assert "model.lora" in refusal(SFT | {"model": {"source": "scratch", "lora": {}}})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"data": {"dataset": "a", "weight": 1, "mix": [{"dataset": "b"}]}},
            r"data\.dataset has a weight and data\.mix\.0 has none: give each dataset one",
        ),
        (
            {"data": {"dataset": "a", "weight": 1, "mix": [{"dataset": "b", "repeats": 2}]}},
            r"data\.dataset has a weight and data\.mix\.0 has repeats: use one of the two",
        ),
        (
            {"data": {"dataset": "a", "weight": 1}},
            "weight is a share among several datasets, and there is one",
        ),
        (
            {"validation": {"share": 0, "patience": 3}},
            "patience 3 counts validations, and with share 0 and no datasets there are none",
        ),
        (
            {"data": {"dataset": "a", "max_seq_len": 64}, "packing": {"tokens_per_step": 100}},
            "tokens_per_step 100 is no multiple of the 64 tokens of a row .* set it to 64 or 128",
        ),
        (
            {"packing": {"tokens_per_step": 100}},
            "tokens_per_step 100 is no multiple of the 256 tokens of a row .* set it to 256",
        ),
        (
            {"data": {"dataset": "a", "max_seq_len": 300}},
            "max_seq_len 300 is more than the 256 positions of the model: lower it, or raise",
        ),
        (
            {"training": {"rows_per_step": 8}, "packing": {"tokens_per_step": 128}},
            "both say how large a step is: leave one out",
        ),
        (
            {"packing": {"tokens_per_step": 256, "crop": "first"}},
            "crop first says which conversation is cut, and when_none_fits pad cuts none",
        ),
        (
            {
                "model": {"path": "m"},
                "objective": {"type": "dpo"},
                "validation": {"best": "bits_per_byte"},
            },
            "no text is measured: set it to loss, or leave it out",
        ),
        ({"training": {"offload": ["critic"]}}, "offload critic is a model that a supervised run"),
    ],
)
def test_a_supervised_run_that_cannot_work_is_refused_with_the_way_out(
    changes: dict[str, Any], said: str
) -> None:
    assert re.search(said, str(refusal(SFT | changes)))


def test_warnings_name_whole_keys() -> None:
    kl = {"algorithm": {"kl": {"type": "k1"}}}
    (sentence,) = rl(**kl).warnings()
    assert sentence.startswith("algorithm.kl.type: the gradient of k1")


def test_quantised_samples_that_nothing_corrects_for_give_a_warning() -> None:
    quantised = {"vllm": {"quantization": "fp8_per_channel"}}
    recomputed = {"proximal": {"type": "recompute"}}
    (sentence,) = rl(rollout=quantised, algorithm=recomputed).warnings()
    assert sentence.startswith("algorithm.correction.type: rollout.vllm.quantization fp8_per_")
    corrected = {**recomputed, "correction": {"type": "truncate"}}
    assert rl(rollout=quantised, algorithm=corrected).warnings() == []
    assert rl(algorithm=recomputed).warnings() == []


def test_learning_rates_that_train_no_model_give_a_warning() -> None:
    gae = {"advantage": {"type": "gae"}, "critic": {"optimizer": {"lr": 1.0}}}
    critic, policy = rl(algorithm=gae, optimizer={"type": "adamw_8bit", "lr": 0.1}).warnings()
    assert critic.startswith("algorithm.critic.optimizer.lr: 1 is far above what AdamW trains")
    assert policy.startswith("optimizer.lr: 0.1 is far above what AdamW trains with (1e-6 to")
    assert rl(optimizer={"lr": 1e-3}).warnings() == []
    (muon,) = parse_config(SFT | {"optimizer": {"type": "muon", "lr": 2}}).warnings()
    assert muon == "optimizer.lr: 2 is far above what Muon trains with (0.02): check it"
    muon_sft = SFT | {"optimizer": {"type": "muon"}}
    assert parse_config(muon_sft).warnings() == []
    assert parse_config(muon_sft | {"model": {"path": "run:0a"}}).warnings() == []
    for config in (
        parse_config(muon_sft | {"model": {"path": "m"}}),
        rl(optimizer={"type": "muon"}),
    ):
        (foreign,) = config.warnings()
        assert foreign.startswith("optimizer.lr: 0.02 is what Muon trains a new model with, and")
    fraction = {"type": "muon", "initial_lr_fraction": 0.02}
    assert rl(optimizer=fraction).warnings() == []


def test_stop_tokens_without_the_end_of_sequence_give_a_warning() -> None:
    (sentence,) = rl(sampling={"stop_token_ids": [5], "ignore_eos": True}).warnings()
    assert sentence.startswith(
        "sampling.stop_token_ids: these tokens end completions, but with ignore"
    )
    assert rl(sampling={"stop_token_ids": [5]}).warnings() == []
    assert rl(sampling={"ignore_eos": True}).warnings() == []
