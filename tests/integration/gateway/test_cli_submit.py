"""`headrace submit` as a user runs it, against the real gateway."""

import json
from pathlib import Path

import pytest

from tests.integration.gateway.servers import Headrace


def test_a_refused_run_lists_its_problems(headrace: Headrace, rows: Path) -> None:
    settings = ("--set", "optimizer.lrr=1", "--set", "model.path=/none")

    refused = headrace("submit", "grpo", "--set", "data.dataset=cli-sum", *settings)

    assert refused.returncode == 1
    lines = refused.stderr.splitlines()
    assert lines[0] == "error: the run was not queued: its config has 3 problems"
    assert "  optimizer.lrr: unknown key; did you mean 'optimizer.lr'?" in lines
    assert "  data.dataset: there is no dataset 'cli-sum'; did you mean 'cli-sums'?" in lines


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("rewards=[{verifier: math, clip: [.nan, 0]}]", "rewards.0.clip.0: nan is not a number"),
        ("training.max_steps=1e400", "--set training.max_steps: inf does not fit"),
        (
            "rollout.vllm.extra.seed=2024-01-31",
            "rollout.vllm.extra.seed: 2024-01-31 is a date to YAML; quote it",
        ),
    ],
)
def test_values_that_yaml_knows_and_json_does_not_are_refused_by_key(
    headrace: Headrace, setting: str, said: str
) -> None:
    refused = headrace("submit", "grpo", "--set", setting)

    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {said}")
    assert len(refused.stderr.splitlines()) == 1


def test_a_place_of_a_list_is_changed_or_refused_by_its_key(
    headrace: Headrace, rows: Path, model: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data: {dataset: cli-sums}\nrewards: [{verifier: math}]\n")

    for source in ("grpo", str(recipe)):
        common = ("submit", source, "--set", "data.dataset=cli-sums")
        taken = headrace(
            *common, "--set", f"model.path={model}", "--set", "rewards.0.weight=2", "--json"
        )
        refused = headrace(*common, "--set", "rewards.1.weight=2")

        assert taken.returncode == 0, taken.stdout
        record = json.loads(taken.stdout)
        assert [(r["verifier"], r["weight"]) for r in record["config"]["rewards"]] == [("math", 2)]
        assert headrace("cancel", record["id"]).returncode == 0
        assert refused.returncode == 1
        assert "rewards is a list without a place '1': its places are 0 to 0" in refused.stderr


def test_submitting_a_run_of_agents_prints_the_command_that_plays_its_sessions(
    headrace: Headrace, rows: Path, model: Path
) -> None:
    common = ("submit", "grpo", "--set", "data.dataset=cli-sums", "--set", f"model.path={model}")
    for episode, times in (("single_turn", 0), ("sessions", 1)):
        done = headrace(*common, "--set", f"rollout.episode={episode}")
        assert done.returncode == 0, done.stderr
        run = done.stdout.split("queued grpo as ")[1].split()[0]
        assert done.stdout.count(f"headrace agents {run} -- COMMAND") == times
        assert headrace("cancel", run).returncode == 0


def test_warnings_about_a_config_are_shown_when_it_is_queued(
    headrace: Headrace, rows: Path, model: Path
) -> None:
    data = ("--set", "data.dataset=cli-sums", "--set", f"model.path={model}")

    done = headrace("submit", "grpo", *data, "--set", "algorithm.kl.type=k1")

    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    assert "warning algorithm.kl.type: the gradient of k1 in the loss is zero" in said
    assert "queued grpo as" in said
    run = said.split("queued grpo as ")[1].split()[0]
    assert headrace("cancel", run).returncode == 0


def test_settings_that_exclude_each_other_are_refused_with_the_way_out(
    headrace: Headrace, rows: Path, model: Path
) -> None:
    data = ("--set", "data.dataset=cli-sums", "--set", f"model.path={model}")
    both = ("--set", "algorithm.loss.type=dppo", "--set", "algorithm.correction.type=mask")

    refused = headrace("submit", "grpo", *data, *both)

    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "error: the run was not queued: its config has a problem",
        "  algorithm: loss dppo is taken against the sampler, so correction mask would count the "
        "same ratio twice: set correction.type to none",
    ]
    assert refused.stdout == ""


def test_a_yaml_file_may_name_a_recipe_and_what_changes_it(
    headrace: Headrace, rows: Path, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "changed.yaml"
    file.write_text(
        "recipe: dr_grpo\n"
        "config: {model: {path: model}, data: {dataset: cli-sums}, training: {seed: 7}}\n"
    )
    done = headrace("submit", str(file), "--set", "training.max_steps=3", "--json")
    assert done.returncode == 0, done.stdout
    record = json.loads(done.stdout)
    training = record["config"]["training"]
    assert (record["name"], training["seed"], training["max_steps"]) == ("changed", 7, 3)
    assert record["recipe"] == "dr_grpo"
    assert headrace("cancel", record["id"]).returncode == 0


def test_a_yaml_file_with_overrides_is_a_recipe(
    headrace: Headrace, rows: Path, model: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.yaml"
    # The folder is named relative to where the user stands.
    recipe.write_text(
        "model: {path: model}\ndata: {dataset: cli-sums}\nrewards: [{verifier: math}]\n"
        "optimizer: {type: adamw, lr: 1.0e-5}\n"
        "algorithm: {advantage: {type: gae}, critic: {path: model}}\n"
    )

    done = headrace("submit", str(recipe), "--set", "training.max_steps=7", "--json")

    assert done.returncode == 0, done.stdout
    record = json.loads(done.stdout)
    assert (record["name"], record["max_steps"]) == ("mine", 7)
    assert record["config"]["model"]["path"] == str(model)
    assert record["config"]["algorithm"]["critic"]["path"] == str(model)
    assert record["config"]["optimizer"]["lr"] == 1e-5
    assert headrace("cancel", record["id"]).returncode == 0
