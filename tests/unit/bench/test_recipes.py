"""What the recipes' benchmark runs, what it still has to run, and the page that it writes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.recipes.run import parsed as parsed_arguments
from bench.recipes.tables import BEGIN, END, KEPT, PAGE, newest, smooth, tables
from bench.recipes.trials import (
    ANSWERS,
    RISE,
    Outcome,
    Trial,
    append,
    demo_config,
    left,
    of_reinforcement_learning,
    read,
    recipe_trials,
    staleness_trials,
)
from recipes import find_recipe
from services.contracts.config import RLConfig, parse_config

TRIALS = [*recipe_trials(of_reinforcement_learning(), 1, 60), *staleness_trials(1, 60, 8)]


def parsed(config: dict[str, Any]) -> RLConfig:
    given = config | {"model": config["model"] | {"path": "run:first"}}
    found = parse_config(given)
    assert isinstance(found, RLConfig)
    return found


def outcome(trial: Trial, after: float = 0.8, **fields: Any) -> Outcome:
    made = Outcome(
        part=trial.part,
        name=trial.name,
        seed=trial.seed,
        steps=trial.config["training"]["max_steps"],
        eta=trial.config["rollout"]["max_staleness"],
        key=trial.key,
        start="abc",
        before=0.4,
        after=after,
        rewards=[0.25, 0.5],
        staleness=1.5,
        seconds=30.0,
        commit=None,
    )
    return replace(made, **fields)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: t.name)
def test_every_run_has_the_same_task_start_and_size_and_shares_one_server(trial: Trial) -> None:
    config, demo = parsed(trial.config), parsed(find_recipe("demo_grpo").config)
    assert (config.data, config.rewards, config.sampling) == (
        demo.data,
        demo.rewards,
        demo.sampling,
    )
    assert config.rollout.vllm == demo.rollout.vllm
    algorithm = config.algorithm
    assert algorithm.prompts_per_step * algorithm.samples_per_prompt == ANSWERS


@pytest.mark.parametrize("name", of_reinforcement_learning())
def test_the_objective_is_the_recipe_s_own(name: str) -> None:
    recipe = find_recipe(name).config
    ours = parsed(demo_config(recipe, 0, 60))
    given = {"data": {"dataset": "any"}, "model": {"dtype": "float32"}, "evaluation": None}
    theirs = parsed(recipe | given)
    for term in ("advantage", "loss", "aggregation", "proximal", "correction", "kl"):
        assert getattr(ours.algorithm, term) == getattr(theirs.algorithm, term)
    for number in ("samples_per_prompt", "minibatches", "epochs_per_batch", "early_stop_ratio"):
        assert getattr(ours.algorithm, number) == getattr(theirs.algorithm, number)
    assert ours.rollout.max_staleness == theirs.rollout.max_staleness
    assert ours.schedule == theirs.schedule


def test_lengths_and_learning_rates_are_brought_to_scale() -> None:
    torchtune = parsed(demo_config(find_recipe("torchtune_ppo").config, 0, 60))
    # 18 of 58 tokens are 3 of 8.
    assert torchtune.algorithm.shaping.min_response_length == 3
    assert torchtune.optimizer.lr == 1e-4
    assert torchtune.algorithm.critic is not None
    assert torchtune.algorithm.critic.optimizer.lr == 5e-4
    # 512 of 2048 tokens are 2 of 8.
    dapo = parsed(demo_config(find_recipe("dapo").config, 0, 60))
    assert dapo.algorithm.shaping.overlong_buffer == 2
    nanochat = demo_config(find_recipe("nanochat_grpo").config, 0, 60)["optimizer"]
    assert (nanochat["lr"], nanochat["betas"]) == (1e-4, [0.9, 0.95])


def test_objectives_on_old_answers_differ_in_nothing_else() -> None:
    # The synchronous one too: its η apart.
    plain, *others = [parsed(trial.config) for trial in staleness_trials(1, 60, 8)]
    assert [plain.rollout.max_staleness] + [c.rollout.max_staleness for c in others] == [0, 8, 8, 8]
    kinds = [(c.algorithm.proximal.type, c.algorithm.correction.type) for c in (plain, *others)]
    assert kinds == [
        ("sampler", "none"),
        ("sampler", "none"),
        ("recompute", "mask"),
        ("recompute", "truncate"),
    ]
    same = {"proximal": plain.algorithm.proximal, "correction": plain.algorithm.correction}
    assert all(c.algorithm.model_copy(update=same) == plain.algorithm for c in others)


def test_what_is_done_is_not_done_again_unless_something_changed(tmp_path: Path) -> None:
    file = tmp_path / "results" / "recipes.jsonl"
    assert read(file) == []
    one, two, *_ = trials = recipe_trials(["grpo", "rloo", "gspo"], 1, 60)
    append(file, outcome(one))
    append(file, outcome(two, start="other weights"))
    assert [trial.name for trial in left(trials, read(file), "abc")] == ["rloo", "gspo"]
    longer = recipe_trials(["grpo"], 1, 61)
    assert left(longer, read(file), "abc") == longer
    assert left(recipe_trials(["grpo"], 2, 60), read(file), "abc")[0].seed == 1


def test_a_line_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "recipes.jsonl"
    one, two = trials = recipe_trials(["grpo", "rloo"], 1, 60)
    append(file, outcome(one))
    with file.open("a") as lines:
        lines.write('{"part": "recipes", "name": "rl')
    assert left(trials, read(file), "abc") == [two]
    append(file, outcome(two))
    assert left(trials, read(file), "abc") == []


def test_a_recipe_has_learned_where_every_seed_has() -> None:
    first, second = recipe_trials(["grpo"], 2, 60)
    outcomes = [outcome(second, 0.55), outcome(first, 0.75)]
    assert tables(outcomes).splitlines()[-1] == (
        "| `grpo` | 1 | 60 | 0.40 | 0.75, 0.55 | +0.15 | 1 of 2 |"
    )
    assert RISE == 0.2


def test_objectives_are_compared_by_what_they_end_with() -> None:
    plain, *_ = staleness_trials(1, 60, 8)
    outcomes = [outcome(plain, 0.7, rewards=[0.9] * 5 + [0.2] * 5 + [0.4] * 5)]
    assert tables(outcomes).splitlines()[-1] == (
        "| plain, η = 0 | 0 | 1.5 | 60 | 0.40 | 0.70 | 0.30 |"
    )


def test_the_newest_outcome_of_a_trial_counts() -> None:
    (trial,) = recipe_trials(["grpo"], 1, 60)
    outcomes = [outcome(trial, 0.5), outcome(trial, 0.6), outcome(trial, 0.7, key="of another")]
    assert [one.after for one in newest([trial], outcomes)] == [0.6]


def test_runs_from_other_weights_stand_in_no_table_together() -> None:
    first, second = trials = recipe_trials(["grpo"], 2, 60)
    outcomes = [outcome(first, start="old"), outcome(second, start="old"), outcome(first)]
    assert [(one.seed, one.start) for one in newest(trials, outcomes)] == [(0, "abc")]
    assert newest(trials, []) == []


@pytest.mark.parametrize("part", ["--recipe=grpo", "--only=staleness"])
def test_a_part_of_the_page_is_not_published_over_all_of_it(part: str) -> None:
    parsed_arguments(["--publish"])
    with pytest.raises(SystemExit):
        parsed_arguments(["--publish", part])


def test_curves_are_means_of_the_last_steps() -> None:
    assert smooth([1.0, 2.0, 6.0, 4.0], 3) == [1.0, 1.5, 3.0, 4.0]


def test_the_page_has_the_tables_of_the_figures_beside_it() -> None:
    page = PAGE.read_text()
    published = [Outcome(**one) for one in json.loads(KEPT.read_text())]
    assert page.split(BEGIN)[1].split(END)[0].strip() == tables(published).strip()
