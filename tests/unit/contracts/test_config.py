"""Run configs: what is filled in, what is refused, and what the refusal says."""

import re
from typing import Any

import pytest

from services.contracts.config import ConfigError, RLConfig, SFTConfig, parse_config
from services.contracts.config.objective.terms import NoKL, ReferenceKL
from services.contracts.config.optimizer import AdamW, MuonAdamW
from services.contracts.config.parsing.other_names import OTHER_NAMES
from services.contracts.config.parsing.tags import key_paths

RL: dict[str, Any] = {
    "model": {"path": "/models/small"},
    "data": {"dataset": "sums"},
    "rewards": [{"verifier": "math"}],
}
SFT: dict[str, Any] = {
    "type": "sft",
    "model": {"source": "scratch"},
    "data": {"dataset": "sums"},
}

LORA = {"path": "m", "lora": {}}


def rl(**sections: Any) -> RLConfig:
    config = parse_config(RL | sections)
    assert isinstance(config, RLConfig)
    return config


def refusal(raw: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        parse_config(raw)
    return dict(refused.value.problems)


def test_a_section_without_its_type_is_that_of_its_default() -> None:
    assert rl(optimizer={"lr": 1e-4}).optimizer == AdamW(lr=1e-4)
    config = parse_config(SFT | {"optimizer": {"lr": 0.01}})
    assert config.optimizer == MuonAdamW(type="muon", lr=0.01)
    assert rl(algorithm={"loss": {"epsilon_high": 0.3}}).algorithm.loss.type == "ppo"
    assert rl(algorithm={"kl": {}}).algorithm.kl == NoKL()


def test_a_section_without_a_default_is_the_member_whose_tag_has_one() -> None:
    config = parse_config(SFT | {"model": {"path": "/models/small"}})
    assert isinstance(config, SFTConfig)
    assert config.model.source == "pretrained"


def test_a_mixture_has_more_experts_than_a_token_goes_to() -> None:
    model = {"source": "scratch", "experts": 2, "experts_per_token": 2}
    said = refusal(SFT | {"model": model})
    assert said["model"].startswith("experts 2 leaves nothing to choose with experts_per_token 2")
    # A Llama has none, whatever is said of them.
    for experts in (0, 3):
        parse_config(SFT | {"model": model | {"experts": experts}})


def test_supervised_training_has_no_routing_to_replay() -> None:
    said = refusal(SFT | {"router": {"aux_loss": 0.1, "replay": True}})
    assert said == {"router.replay": "unknown key; known here: aux_loss, z_loss"}


def test_only_a_run_with_an_evaluation_may_train_nothing() -> None:
    nothing = {"training": {"max_steps": 0}}

    assert rl(**nothing, evaluation={"dataset": "test"}).training.max_steps == 0
    assert "max_steps 0 trains nothing" in str(refusal(RL | nothing))
    assert "a supervised run only trains" in str(refusal(SFT | nothing))


def test_a_number_of_epochs_that_no_run_can_train_is_refused() -> None:
    for raw in (RL, SFT):
        said = refusal(raw | {"training": {"epochs": 1e300}})
        assert said["training.epochs"].endswith("less than or equal to 10000 (got 1e+300)")


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit", "muon"])
def test_betas_that_are_no_decay_are_refused(kind: str) -> None:
    said = refusal(RL | {"optimizer": {"type": kind, "betas": [1.0, -0.1]}})
    assert said["optimizer.betas.0"] == "Input should be less than 1 (got 1.0)"
    assert said["optimizer.betas.1"].startswith("Input should be greater than or equal to 0")


def test_a_key_that_only_other_types_have_needs_the_type() -> None:
    said = refusal(RL | {"algorithm": {"kl": {"beta": 0.1}}, "optimizer": {"momentum": 0.9}})
    assert said["algorithm.kl"] == "needs a type: one of none, k1, k2, k3, k3+, k1_in_reward"
    assert said["optimizer"] == "needs a type: one of adamw, adamw_8bit, muon"


@pytest.mark.parametrize(
    ("algorithm", "path", "said"),
    [
        (
            {"kl": {"type": "none", "beta": 0.1}},
            "algorithm.kl.beta",
            "is a key of k1, k2, k3, k3+, k1_in_reward, and algorithm.kl.type is none: set that, "
            "too, or leave this out",
        ),
        (
            {"kl": {"type": "none", "reference": {"type": "ema", "rate": 0.1}}},
            "algorithm.kl.reference",
            "is a key of k1, k2, k3, k3+, k1_in_reward, and algorithm.kl.type is none: set that, "
            "too, or leave this out",
        ),
        (
            {"advantage": {"type": "group_zscore", "lambda": 0.9}},
            "algorithm.advantage.lambda",
            "is a key of gae, and algorithm.advantage.type is group_zscore: set that, too, or "
            "leave this out",
        ),
    ],
)
def test_a_key_of_another_type_is_refused_with_that_type(
    algorithm: dict[str, Any], path: str, said: str
) -> None:
    assert refusal(RL | {"algorithm": algorithm}) == {path: said}


def test_a_type_that_the_user_sets_stays() -> None:
    kl = rl(algorithm={"kl": {"type": "k3", "beta": 0.1}}).algorithm.kl
    assert kl == ReferenceKL(type="k3", beta=0.1)


def test_every_key_that_another_systems_name_leads_to_exists() -> None:
    assert set(OTHER_NAMES.values()) <= set(key_paths(RLConfig))
    assert not set(OTHER_NAMES) & set(RLConfig.model_fields)


@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        ({"optimzer": {}}, "optimzer", "unknown key; did you mean 'optimizer'?"),
        ({"optimizer": {"lrr": 1}}, "optimizer.lrr", "unknown key; did you mean 'optimizer.lr'?"),
        (
            {"algorithm": {"kl": {"type": "k2", "bta": 1}}},
            "algorithm.kl.bta",
            "unknown key; did you mean 'algorithm.kl.beta'?",
        ),
        (
            {"rewards": [{"verifier": "math", "wieght": 2}]},
            "rewards.0.wieght",
            "unknown key; did you mean 'rewards.0.weight'?",
        ),
        (
            {"sampling": {"min_tokens": 0}},
            "sampling.min_tokens",
            "unknown key; did you mean 'sampling.max_tokens'?",
        ),
        ({"algorithm": {"zzzz": 1}}, "algorithm.zzzz", "unknown key; known here: advantage,"),
        ({"sampling": 5}, "sampling", "is a section, not 5: its keys are ignore_eos, max_tokens,"),
        ({"learning_rate": 1}, "learning_rate", "unknown key; did you mean 'optimizer.lr'?"),
        ({"temperature": 1}, "temperature", "unknown key; did you mean 'sampling.temperature'?"),
        (
            {"algorithm": {"num_generations": 8}},
            "algorithm.num_generations",
            "unknown key; did you mean 'algorithm.samples_per_prompt'?",
        ),
        # It is called so in other sections.
        ({"top_p": 1}, "top_p", "unknown key; did you mean 'sampling.top_p'?"),
        (
            {"training": {"adaptive": {}}},
            "training.adaptive",
            "unknown key; did you mean 'algorithm.kl.adaptive'?",
        ),
        (
            {"actor_rollout_ref": {"rollout": {"n": 8}, "ref": {"strategy": "fsdp"}}},
            "actor_rollout_ref.rollout.n",
            "unknown key; did you mean 'algorithm.samples_per_prompt'?",
        ),
        # A letter that another key has, too, makes no likeness.
        ({"a": 1}, "a", "unknown key; known here: algorithm,"),
        ({"optimizer": {"type": "adam"}}, "optimizer", "did you mean 'adamw'?"),
        ({"optimizer": {"type": "m"}}, "optimizer", "type 'm' does not exist; there is adamw"),
        ({"training": {"max_steps": -1}}, "training.max_steps", "(got -1)"),
        ({"optimizer": 5}, "optimizer", "is a section, not 5: its keys are"),
    ],
)
def test_an_unknown_key_or_type_is_refused_with_the_nearest_known_one(
    sections: dict[str, Any], path: str, said: str
) -> None:
    assert said in refusal(RL | sections)[path]


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
        ({"sampling": {"top_k": 1001}}, "sampling.top_k", "less than or equal to 1000"),
        ({"training": {"seed": -1}}, "training.seed", "greater than or equal to 0"),
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
        ({"model": {"path": "m", "lora": {"rank": 513}}}, "model.lora.rank", "(got 513)"),
        ({"model": {"path": "m", "lora": {"rank": 0}}}, "model.lora.rank", "(got 0)"),
        ({"model": {"path": "m", "lora": {"alpha": 0}}}, "model.lora.alpha", "(got 0)"),
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
            "Input should be 'auto', 'float32' or 'bfloat16' (got 'float16')",
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
    said = refusal(SFT | {"model": {"path": "m", "lora": {}}})
    assert "optimizer.type muon is made for whole matrices" in said[""]
    parse_config(SFT | {"model": {"path": "m", "lora": {}}, "optimizer": {"type": "adamw"}})
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
            {"training": {"rows_per_step": 8}, "packing": {"tokens_per_step": 128}},
            "both say how large a step is: leave one out",
        ),
        ({"training": {"offload": ["critic"]}}, "offload critic is a model that a supervised run"),
    ],
)
def test_a_supervised_run_that_cannot_work_is_refused_with_the_way_out(
    changes: dict[str, Any], said: str
) -> None:
    assert re.search(said, str(refusal(SFT | changes)))


def test_supervised_training_and_rl_render_prompts_with_the_same_options() -> None:
    rendering = {"system": "Add.", "template": "{prompt}=", "chat_template": "none"}
    config = parse_config(SFT | {"data": {"dataset": "sums", **rendering}})
    options = rl(data={"dataset": "sums", **rendering}).data.model_dump(
        exclude={"filter", "curriculum", "mix", "name", "source", "reward_deadline"}
    )
    assert rendering.items() <= options.items() <= config.data.model_dump().items()
    said = refusal(SFT | {"data": {"dataset": "sums", "template": "{}"}})
    assert "lacks the placeholder {prompt}" in said["data"]


def test_a_mapping_for_a_list_is_refused_with_both_ways_out() -> None:
    said = refusal(RL | {"rewards": {"verifier": "math"}})

    assert said["rewards"] == (
        "is a list, not a mapping of verifier: give all of it ([…]), or change a place of the one "
        "that is there (rewards.0)"
    )


def test_a_config_that_is_no_mapping_is_refused() -> None:
    assert "a run config is a mapping, not list" in refusal([])[""]  # type: ignore[arg-type]


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


def test_stop_tokens_without_the_end_of_sequence_give_a_warning() -> None:
    (sentence,) = rl(sampling={"stop_token_ids": [5], "ignore_eos": True}).warnings()
    assert sentence.startswith(
        "sampling.stop_token_ids: these tokens end completions, but with ignore"
    )
    assert rl(sampling={"stop_token_ids": [5]}).warnings() == []
    assert rl(sampling={"ignore_eos": True}).warnings() == []


LIVE: dict[str, Any] = {
    "data": {"source": "sessions"},
    "rewards": [],
    "rollout": {"episode": "sessions", "max_staleness": 8},
    "algorithm": {"samples_per_prompt": 1, "advantage": {"type": "running_mean"}},
    "training": {"max_steps": 3},
}


def live(**changes: Any) -> dict[str, Any]:
    return {"model": {"path": "org/model"}, **LIVE, **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"source": "sessions", "dataset": "d"}}, "dataset is for the rows of a dataset"),
        ({"data": {"source": "sessions", "template": "{prompt}="}}, "template is for the rows"),
        ({"data": {"source": "sessions", "mix": [{"dataset": "d"}]}}, "mix is for the rows"),
        ({"data": {"source": "sessions", "curriculum": {}}}, "curriculum is for the rows"),
        ({"data": {"source": "sessions", "filter": {"low": 0.1}}}, "filter is for the rows"),
        ({"data": {}}, "dataset is required"),
        ({"data": {"dataset": "d", "reward_deadline": 9}}, "reward_deadline is for sessions that"),
        ({"rollout": {}}, "needs rollout.episode: sessions"),
        ({"rewards": [{"verifier": "math"}]}, "set rewards to []"),
        (
            {"algorithm": {"samples_per_prompt": 2}},
            "samples_per_prompt 2: with data.source sessions each session is a group of its own",
        ),
        ({"algorithm": {"samples_per_prompt": 1}}, "or advantage.type to running_mean"),
        ({"training": {}}, "set training.max_steps instead"),
        ({"training": {"epochs": 1}}, "set training.max_steps instead"),
        ({"training": {"max_steps": 0}}, "max_steps 0 trains nothing: set it to 1 or more"),
        ({"evaluation": {"dataset": "d"}}, "nobody answers held-out rows"),
    ],
)
def test_a_run_on_live_sessions_refuses_what_belongs_to_a_dataset(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(live(**changes))
    assert said in str(refused.value)


def test_a_run_on_live_sessions_is_read_back_as_it_was_written() -> None:
    config = parse_config(live())
    assert parse_config(config.model_dump(mode="json")) == config
    assert isinstance(config, RLConfig)
    assert (config.data.reward_seconds, config.warnings()) == (86_400, [])
    hasty = parse_config(live(rollout={"episode": "sessions"}))
    assert isinstance(hasty, RLConfig)
    assert hasty.warnings()[0].startswith("rollout.max_staleness: 1: a session is dropped if")
