"""Run configs: what is filled in, what is refused, and what the refusal says."""

from typing import Any

import pytest

from services.contracts.config import SFTConfig, parse_config
from services.contracts.config.data import Data, SFTData
from services.contracts.config.objective.terms import NoKL, ReferenceKL
from services.contracts.config.optimizer import AdamW, MuonAdamW, SFTAdamW, SFTAdamW8bit
from tests.unit.contracts.configs import RL, SFT, refusal, rl


def test_a_section_without_its_type_is_that_of_its_default() -> None:
    assert rl(optimizer={"lr": 1e-4}).optimizer == AdamW(lr=1e-4)
    assert rl(algorithm={"loss": {"epsilon_high": 0.3}}).algorithm.loss.type == "ppo"
    assert rl(algorithm={"kl": {}}).algorithm.kl == NoKL()


@pytest.mark.parametrize(
    ("model", "optimizer", "expected"),
    [
        ({"path": "m"}, {}, SFTAdamW(lr=1e-5)),
        ({"path": "m"}, {"weight_decay": 0.1}, SFTAdamW(lr=1e-5, weight_decay=0.1)),
        ({"path": "m"}, {"type": "adamw_8bit"}, SFTAdamW8bit(type="adamw_8bit", lr=1e-5)),
        ({"path": "m"}, {"type": "muon"}, MuonAdamW(type="muon", lr=0.02)),
        ({"source": "scratch"}, {}, MuonAdamW(type="muon", lr=0.02)),
        ({"source": "scratch"}, {"lr": 0.01}, MuonAdamW(type="muon", lr=0.01)),
        ({"source": "scratch"}, {"type": "adamw"}, SFTAdamW(lr=1e-5)),
    ],
)
def test_only_supervised_training_from_scratch_has_muon_by_default(
    model: dict[str, Any], optimizer: dict[str, Any], expected: Any
) -> None:
    config = parse_config(SFT | {"model": model, "optimizer": optimizer})
    assert config.optimizer == expected
    assert parse_config(config.model_dump(mode="json")) == config


def test_a_supervised_schedule_with_warm_up_still_decays() -> None:
    schedule = parse_config(SFT | {"schedule": {"warmup_steps": 10}}).schedule
    assert (schedule.type, schedule.warmup_steps) == ("wsd", 10)


def test_a_section_without_a_default_is_the_member_whose_tag_has_one() -> None:
    config = parse_config(SFT | {"model": {"path": "/models/small"}})
    assert isinstance(config, SFTConfig)
    assert config.model.source == "pretrained"


def test_a_mixture_has_more_experts_than_a_token_goes_to() -> None:
    model = {"source": "scratch", "experts": 2, "experts_per_token": 2}
    said = refusal(SFT | {"model": model})
    assert said["model"].startswith("experts 2 leaves nothing to choose with experts_per_token 2")
    # A Llama has no experts, so the key is ignored.
    for experts in (0, 3):
        parse_config(SFT | {"model": model | {"experts": experts}})


def test_supervised_training_has_no_routing_to_replay() -> None:
    said = refusal(SFT | {"router": {"aux_loss": 0.1, "replay": True}})
    alone = "'algorithm.router.replay' is a key of runs of type rl alone: leave it out"
    assert said == {"router.replay": f"unknown key; {alone}"}


def test_only_a_run_with_an_evaluation_may_train_nothing() -> None:
    nothing = {"training": {"max_steps": 0}}

    assert rl(**nothing, evaluation={"dataset": "test"}).training.max_steps == 0
    assert "max_steps 0 trains nothing" in str(refusal(RL | nothing))
    assert "a supervised run only trains" in str(refusal(SFT | nothing))


def test_a_number_of_epochs_that_no_run_can_train_is_refused() -> None:
    for raw in (RL, SFT):
        said = refusal(raw | {"training": {"epochs": 1e300}})
        assert said["training.epochs"].endswith("at most 10000.0, not 1e+300")


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit", "muon"])
def test_betas_that_are_no_decay_are_refused(kind: str) -> None:
    said = refusal(RL | {"optimizer": {"type": kind, "betas": [1.0, -0.1]}})
    assert said["optimizer.betas.0"] == "must be less than 1.0, not 1.0"
    assert said["optimizer.betas.1"].startswith("must be at least 0")


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
            {"sampling": {"max_token": 9}},
            "sampling.max_token",
            "unknown key; did you mean 'sampling.max_tokens'?",
        ),
        ({"algorithm": {"zzzz": 1}}, "algorithm.zzzz", "unknown key; known here: advantage,"),
        ({"sampling": 5}, "sampling", "is a section, not 5: its keys are ignore_eos, json_schema,"),
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
        ({"optimizer": {"type": "adamm"}}, "optimizer", "did you mean 'adamw'?"),
        ({"optimizer": {"type": "m"}}, "optimizer", "type 'm' does not exist; there is adamw"),
        ({"training": {"max_steps": -1}}, "training.max_steps", "not -1"),
        ({"optimizer": 5}, "optimizer", "is a section, not 5: its keys are"),
    ],
)
def test_an_unknown_key_or_type_is_refused_with_the_nearest_known_one(
    sections: dict[str, Any], path: str, said: str
) -> None:
    assert said in refusal(RL | sections)[path]


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (RL | {"rl": 1}, "rl"),
        (SFT | {"sft": 1}, "sft"),
        (RL | {"optimizer": {"type": "muon", "muon": 1}}, "optimizer.muon"),
    ],
)
def test_an_unknown_key_that_is_called_as_a_kind_is_named(raw: dict[str, Any], key: str) -> None:
    assert "unknown key" in refusal(raw)[key]


def test_supervised_training_and_rl_render_prompts_with_the_same_options() -> None:
    rendering = {"system": "Add.", "template": "{prompt}=", "chat_template": "none"}
    config = parse_config(SFT | {"data": {"dataset": "sums", **rendering}})
    options = rl(data={"dataset": "sums", **rendering}).data.model_dump(
        exclude=Data.model_fields.keys() - SFTData.model_fields.keys() | {"mix"}
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


def test_a_config_must_be_a_mapping() -> None:
    assert "a run config is a mapping, not list" in refusal([])[""]  # type: ignore[arg-type]
