"""`headrace explain` and `headrace config schema` say what the models of the config say."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.config.explained_keys import close_keys, explained
from headrace.cli.main import root
from headrace.cli.output import CliError
from headrace.cli.runs.config_changes import changes
from headrace.cli.runs.overrides import overrides_from
from services.contracts.config import RLConfig, SFTConfig, parse_config
from services.contracts.config.parsing.type_tags import key_paths


def run(*words: str) -> str:
    result = CliRunner().invoke(root, words)
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_every_key_is_explained_with_an_example_that_the_command_line_takes() -> None:
    for key in {path for model in (RLConfig, SFTConfig) for path in key_paths(model)}:
        explanation = explained(key)
        assert explanation is not None, key
        assert all(meaning.description or meaning.values for meaning in explanation.meanings), key
        if not explanation.keys:
            overrides_from([explanation.example])


def test_a_key_has_its_type_default_meaning_example_and_other_names() -> None:
    lines = run("explain", "rewards[].weight").splitlines()
    assert lines[:5] == [
        "KEY       rewards.0.weight",
        "",
        "TYPE      number",
        "DEFAULT   1.0",
        "MEANING   The reward is the weighted sum over components.",
    ]
    assert "EXAMPLE   --set rewards.0.weight=1.0" in lines
    assert "ELSEWHERE reward_weights" in lines
    assert max(map(len, lines)) <= 80


def test_a_key_of_several_kinds_of_section_is_explained_for_each() -> None:
    document = json.loads(run("explain", "optimizer.lr", "-o", "json"))
    defaults = {kind: m["default"] for m in document["meanings"] for kind in m["kinds"]}
    assert defaults["muon"] == 0.02
    assert defaults["adamw of rl runs"] == 1e-6
    assert defaults["adamw of sft runs"] == 1e-5


def test_a_section_lists_its_keys_and_kinds() -> None:
    shown = run("explain", "optimizer")
    assert "KEYS of muon" in shown
    assert "KEYS of adamw, adamw_8bit" in shown
    assert "headrace explain optimizer.KEY explains one of them." in shown
    assert "  rewards " in run("explain")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("learning_rate", "optimizer.lr"),
        ("kl_coef", "algorithm.kl.beta"),
        ("training.maxsteps", "training.max_steps"),
        ("lr", "optimizer.lr"),
        ("optimiser.lr", "optimizer.lr"),
    ],
)
def test_an_unknown_key_is_answered_with_close_ones(key: str, near: str) -> None:
    assert close_keys(key)[0] == near
    result = CliRunner().invoke(root, ["explain", key])
    assert isinstance(result.exception, CliError)
    assert ("", f"headrace explain {near}") in result.exception.problems


def test_the_schema_has_both_types_of_runs() -> None:
    schema = json.loads(run("config", "schema"))
    assert set(schema["discriminator"]["mapping"]) == {"rl", "sft"}
    alone = json.loads(run("config", "schema", "--type", "sft"))
    assert alone["title"] == "SFTConfig"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("optimizer.lr=abc", "'abc' does not fit; the key takes number, > 0. For example: --set "),
        ("training.max_steps=1.5", "1.5 does not fit; the key takes integer or null, ≥ 0"),
        (
            "optimizer.betas=[0.9]",
            "the key takes list of 2 numbers. For example: --set 'optimizer.",
        ),
        ("rewards.0.weight=x", "(see `headrace explain rewards.0.weight`)"),
        (
            "training.activation_checkpointing=",
            "null does not fit; the key takes `auto` or true or false",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_type_and_an_example(
    setting: str, words: str
) -> None:
    with pytest.raises(CliError) as refused:
        overrides_from([setting])
    assert f"--set {setting.partition('=')[0]}: " in refused.value.message
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.max_steps=1e3", 1000.0),
        ("optimizer.max_grad_norm=null", None),
        ("algorithm.advantage.whiten=true", True),
        ("evaluation=null", None),
        ("sampling.top_k=-1", -1),
        ("data.dataset=2024", "2024"),
        ("rewards.0.name=1e5", "1e5"),
    ],
)
def test_a_value_that_a_section_or_a_union_takes_is_left_to_the_gateway(
    setting: str, value: Any
) -> None:
    inner: Any = overrides_from([setting])
    while isinstance(inner, dict):
        (inner,) = inner.values()
    assert inner == value


def test_changes_are_listed_against_the_recipe_and_its_defaults() -> None:
    raw = {
        "model": {"path": "/m"},
        "data": {"dataset": "d", "template": "Q: {prompt}"},
        "rewards": [{"verifier": "math"}],
        "optimizer": {"lr": 3e-6},
    }
    config = parse_config(raw).model_dump(mode="json")
    without = changes(config, None)
    assert without is not None
    assert {(change.key, change.run) for change in without} == {
        ("data.template", "Q: {prompt}"),
        ("optimizer.lr", 3e-6),
    }
    assert changes(config, "a recipe of another version") is None
