"""Every recipe is a run config once the model and the dataset are named."""

from operator import attrgetter
from typing import Any

import pytest

from recipes import (
    Recipe,
    UnknownRecipe,
    find_recipe,
    list_chains,
    list_recipes,
    merged,
    read_recipe,
)
from services.contracts.config import ConfigError, parse_config
from services.gateway.chains.chain_submission import ChainSubmission


@pytest.mark.parametrize("recipe", list_recipes(), ids=lambda recipe: recipe.name)
def test_a_recipe_is_valid_and_says_when_to_use_it(recipe: Recipe) -> None:
    given: dict[str, Any] = {"data": {"dataset": "d"}}
    if recipe.name == "live":
        given = {}
    if recipe.name == "distillation":
        given["algorithm"] = {"teacher": {"path": "org/teacher"}}
    if recipe.name == "nanochat_grpo":
        given["evaluation"] = {"dataset": "held-out"}
    if recipe.config.get("model", {}).get("source") != "scratch":
        given["model"] = {"path": "org/model"}

    parse_config(merged(recipe.config, given))

    assert len(recipe.when) > 20


def test_a_recipe_without_its_model_and_dataset_is_refused_with_the_keys_to_set() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(find_recipe("dr_grpo").config)
    problems = dict(refused.value.problems)
    assert "--set model.path=" in problems["model.path"]
    assert "--set data.dataset=" in problems["data.dataset"]


def test_a_refused_config_without_a_recipe_names_recipes_as_a_source_of_rewards() -> None:
    with pytest.raises(ConfigError, match=r"rewards: is required: a list of verifiers.*recipes"):
        parse_config({"model": {"path": "m"}, "data": {"dataset": "d"}})


@pytest.mark.parametrize("chain", list_chains(), ids=lambda chain: chain.name)
def test_a_chain_is_valid_and_says_when_to_use_it(chain: Recipe) -> None:
    assert len(chain.when) > 20
    for step in ChainSubmission.model_validate(chain.config).steps:
        base = find_recipe(step.recipe).config if step.recipe else {}
        whole = merged(base, step.config)
        whole["model"] = {"path": "org/model"} | whole["model"]
        parse_config(whole)


GIVEN: dict[str, Any] = {"model": {"path": "org/model"}, "data": {"dataset": "d"}}
HELD_OUT = {"evaluation": {"dataset": "held-out"}}
EPISODE = {"type": "calculator", "start": "<<", "end": "=", "output_start": "", "output_end": ">>"}

MUON = {
    "type": "muon",
    "lr": 0.02,
    "embedding_lr": 0.2,
    "unembedding_lr": 4e-3,
    "adamw_lr": 4e-3,
    "initial_lr_fraction": 0.05,
    "betas": [0.8, 0.95],
    "eps": 1e-10,
    "max_grad_norm": None,
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("grpo", {"model": {"lora": {"rank": 16}}}),
        ("rloo", {"algorithm": {"kl": {"type": "k2"}}}),
        ("reinforce_pp", {"algorithm": {"samples_per_prompt": 8, "advantage": {"baseline": True}}}),
        ("nanochat_grpo", {"rollout": {"episode": EPISODE}, **HELD_OUT}),
        ("nanochat_grpo", {"optimizer": MUON, "evaluation": None}),
        ("torchtune_ppo", {"sampling": {"stop_token_ids": [28723]}}),
        ("minimind_ppo", {"algorithm": {"kl": {"type": "k1"}}}),
        ("minimind_ppo", {"rollout": {"vllm": {"max_model_len": 1602}}}),
        (
            "areal_ppo_code",
            {"algorithm": {"advantage": {"type": "global_whiten"}, "critic": None}},
        ),
        (
            "areal_ppo_code",
            {
                "algorithm": {
                    "advantage": {"type": "global_whiten", "whiten": "group"},
                    "critic": None,
                    "samples_per_prompt": 8,
                }
            },
        ),
        (
            "areal_ppo_code",
            {"algorithm": {"kl": {"reference": {"path": "run:r"}}}},
        ),
        (
            "areal_ppo_code",
            {"algorithm": {"kl": {"adaptive": {"target": 6, "horizon": 10000, "per": "token"}}}},
        ),
        (
            "areal_ppo_code",
            {"algorithm": {"kl": {"reference": {"type": "ema", "rate": 0.01}}}},
        ),
        ("midtrain", {"data": {"mix": [{"dataset": "d"}, {"dataset": "e", "repeats": 2}]}}),
        (
            "midtrain",
            {"validation": {"datasets": [{"dataset": "d"}, {"dataset": "e", "rows": 5200}]}},
        ),
        ("sft", {"model": {"lora": {"rank": 16}}, "optimizer": {"lr": 1e-4}}),
        ("dpo", {"model": {"path": "run:r", "lora": {"rank": 16}}}),
        ("dpo", {"training": {"offload": ["reference"]}}),
    ],
)
def test_the_variants_that_a_recipe_speaks_of_are_valid(name: str, changes: dict[str, Any]) -> None:
    parse_config(merged(merged(find_recipe(name).config, GIVEN), changes))


FACTS: dict[str, dict[str, Any]] = {
    "nanochat_grpo": {
        "optimizer.type": "adamw",
        "optimizer.lr": 4.5e-6,
        "optimizer.betas": (0.9, 0.95),
        "optimizer.weight_decay": 0.0,
        "optimizer.max_grad_norm": None,
        "schedule.type": "linear",
        "schedule.floor": 0.0,
        "algorithm.aggregation.chunk": 8,
        "sampling.top_k": 50,
        "training.epochs": 1.0,
        "data.order": "file",
        "evaluation.every": 60,
        "evaluation.rows": 400,
        "evaluation.samples": 8,
        "evaluation.temperature": 1.0,
    },
    "torchtune_ppo": {
        "algorithm.epochs_per_batch": 2,
        "algorithm.minibatches": 2,
        "algorithm.shaping.min_response_length": 19,
        "algorithm.advantage.keep_mean": True,
        "algorithm.advantage.score_at": "end",
        "algorithm.critic.loss_weight": 0.1,
        "algorithm.critic.optimizer.max_grad_norm": None,
        "optimizer.lr": 3e-6,
        "optimizer.weight_decay": 0.01,
        "optimizer.max_grad_norm": None,
        "sampling.temperature": 0.7,
    },
    "areal_ppo_code": {
        "algorithm.advantage.bootstrap_truncated": True,
        "algorithm.advantage.gamma": 1.0,
        "algorithm.advantage.lambda_": 1.0,
        "algorithm.minibatches": 4,
        "algorithm.shaping.max_reward_clip": 20.0,
        "algorithm.critic.normalisation.beta": 0.99995,
        "algorithm.critic.normalisation.eps": 0.01,
        "algorithm.critic.normalisation.clip": 5.0,
        "algorithm.critic.optimizer.lr": 2e-5,
        "algorithm.kl.beta": 0.1,
        "algorithm.early_stop_ratio": 5.0,
        "algorithm.correction.type": "none",
        "algorithm.proximal.type": "sampler",
        "algorithm.prompts_per_step": 256,
        "optimizer.lr": 2e-5,
        "optimizer.betas": (0.9, 0.95),
        "optimizer.eps": 1e-5,
        "optimizer.weight_decay": 0.05,
        "rollout.max_staleness": 0,
        "sampling.max_tokens": 16_384,
    },
    "minimind_ppo": {
        "optimizer.weight_decay": 0.01,
        "algorithm.critic.optimizer.weight_decay": 0.01,
        "optimizer.lr": 8e-8,
        "algorithm.kl.per": "sample",
        "algorithm.kl.beta": 0.02,
        "algorithm.proximal.every": 4,
        "algorithm.loss.epsilon_low": 0.1,
        "schedule.floor": 0.1,
        "sampling.max_tokens": 1536,
        "data.long_prompts": "cut",
        "training.epochs": 1.0,
        "training.checkpoint_every": 10,
    },
    "sft": {
        "optimizer.type": "adamw",
        "optimizer.lr": 1e-5,
        "schedule.type": "cosine",
        "schedule.warmup_steps": 10,
        "data.train_on": "assistant",
        "validation.share": 0.02,
    },
    "midtrain": {
        "optimizer.embedding_lr": 0.2,
        "optimizer.unembedding_lr": 4e-3,
        "optimizer.lr": 0.02,
        "optimizer.max_grad_norm": None,
        "data.train_on": "all",
        "optimizer.momentum_start": 0.85,
        "schedule.decay_share": 0.2,
        "packing.tokens_per_step": 524_288,
        "packing.cropped": "first",
        "packing.buffer": 100,
        "validation.tokens": 20 * 524_288,
        "validation.every": 150,
        "validation.best": "bits_per_byte",
    },
}


@pytest.mark.parametrize("name", FACTS)
def test_a_recipe_has_the_numbers_that_it_is_known_for(name: str) -> None:
    given = GIVEN | HELD_OUT if name == "nanochat_grpo" else GIVEN
    config = parse_config(merged(find_recipe(name).config, given))
    found = {path: attrgetter(path)(config) for path in FACTS[name]}
    assert found == FACTS[name]


def test_areals_asynchronous_recipe_differs_from_its_synchronous_one_in_what_its_age_needs() -> (
    None
):
    plain, late = (find_recipe(name).config for name in ("areal_ppo_code", "areal_ppo_code_async"))
    assert late["rollout"].pop("max_staleness") == 4
    assert late["algorithm"].pop("proximal") == {"type": "recompute"}
    assert late["algorithm"].pop("correction") == {"type": "mask", "low": 0.0, "high": 5.0}
    del plain["rollout"]["max_staleness"], plain["algorithm"]["proximal"]
    assert plain == late


def test_a_recipe_that_evaluates_says_how_to_turn_evaluation_off() -> None:
    nanochat = find_recipe("nanochat_grpo").config
    whole = {"model": {"path": "org/model"}, "data": {"dataset": "d"}}
    with pytest.raises(ConfigError) as refused:
        parse_config(merged(nanochat, whole))
    said = [("evaluation.dataset", "is required: set it, or set evaluation to null")]
    assert refused.value.problems == said
    parse_config(merged(nanochat, whole | {"evaluation": None}))


def test_every_recipe_of_the_predecessors_and_of_the_papers_is_there() -> None:
    papers = {
        "grpo",
        "dr_grpo",
        "dapo",
        "gspo",
        "cispo",
        "rloo",
        "reinforce_pp",
        "icepop",
        "dpo",
        "distillation",
    }
    predecessors = {"nanochat_grpo", "torchtune_ppo", "areal_ppo_code", "minimind_ppo", "midtrain"}
    assert papers | predecessors <= {recipe.name for recipe in list_recipes()}


def test_an_unknown_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownRecipe, match=r"no recipe 'grop' \(did you mean 'grpo'\?\)"):
        find_recipe("grop")


def test_a_file_that_is_not_yaml_is_refused_by_line() -> None:
    with pytest.raises(UnknownRecipe, match=r"mine\.yaml is not YAML: .* at line 2"):
        read_recipe("mine.yaml", "a: 1\nb: : 2\n")


def test_a_file_that_is_not_a_mapping_is_refused() -> None:
    with pytest.raises(UnknownRecipe, match="a recipe is a mapping"):
        read_recipe("mine.yaml", "- 1\n")


@pytest.mark.parametrize(
    "text",
    [
        "training:\n  seed: 1\noptimizer: {lr: 1}\ntraining:\n  max_steps: 2\n",
        "a:\n- b: 1\n  c: 2\n\n  b: 3\n",
    ],
)
def test_a_key_that_a_recipe_has_twice_is_refused_with_its_lines(text: str) -> None:
    with pytest.raises(
        UnknownRecipe, match=r"the key '\w+' of line [12] is there again at line [45]"
    ):
        read_recipe("mine.yaml", text)


def test_a_recipe_may_reuse_a_part_and_change_one_key() -> None:
    text = "one: &part {a: 1, b: 2}\ntwo: {<<: *part, b: 3}\n"

    assert read_recipe("mine.yaml", text).config["two"] == {"a": 1, "b": 3}
