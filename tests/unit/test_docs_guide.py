"""The guide is true: its tables, configs, names, commands and scores."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from deploy.guide_tables import with_tables
from headrace.cli.main import root
from recipes import find_recipe, list_recipes, merged
from reward.verifiers.base import Item
from reward.verifiers.graders.shapes import GraderParams
from reward.verifiers.graders.worker_verifier import verdict_of
from reward.verifiers.plain_function import FunctionVerifier
from reward.verifiers.registry import parse_params
from services.contracts.config import RLConfig, SFTConfig, parse_config
from services.contracts.config.parsing.type_tags import key_paths
from tests.unit.reward.graders import graded
from tests.unit.reward.scoring import VERIFIERS, score
from tests.unit.test_docs import DOCUMENTS, METRIC, ROOT, documented

PAGES = sorted((ROOT / "docs" / "guide").glob("*.md"))
KEYS = {*key_paths(RLConfig), *key_paths(SFTConfig)}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def own_words(page: Path) -> str:
    """The text of a page without its generated tables and its blocks."""
    text = re.sub(r"<!-- (names|recipes).*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code of a language; '' for those that name none."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@each_page
def test_its_tables_are_those_that_the_code_makes(page: Path) -> None:
    assert page.read_text() == with_tables(page.read_text()), (
        "a recipe or a name of another system has changed; run: "
        ".venv/bin/python -m deploy.guide_tables"
    )


def test_each_recipe_has_its_row_on_the_page_about_recipes() -> None:
    text = (ROOT / "docs/guide/which-recipe.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(listed) == [recipe.name for recipe in list_recipes()]


@each_page
def test_the_configs_that_it_shows_are_accepted(page: Path) -> None:
    for block in blocks(page.read_text(), "yaml"):
        shown = yaml.safe_load(block)
        if "recipe" in shown:
            parse_config(merged(find_recipe(shown["recipe"]).config, shown["config"]))
        elif "steps" in shown:
            for step in shown["steps"]:
                config = {"model": {"path": "step:before"}} | step["config"]
                parse_config(merged(find_recipe(step["recipe"]).config, config))
        elif "rewards" in shown:
            config = {"model": {"path": "m"}, "data": {"dataset": "d"}} | shown
            parse_config(merged(find_recipe("grpo").config, config))


@each_page
def test_the_metrics_and_keys_that_it_names_exist(page: Path) -> None:
    names = re.findall(r"`([a-z][\w./*]+)`", own_words(page))
    groups = {metric.partition("/")[0] for metric in documented()}
    known = [re.compile(metric.replace("*", r"\w+")) for metric in documented()]
    metrics = {n for n in names if n.partition("/")[0] in groups and METRIC.match(n)}
    sections = {key.partition(".")[0] for key in KEYS}
    keys = {n for n in names if n.partition(".")[0] in sections and "." in n and "/" not in n}

    assert {m for m in metrics if not any(form.fullmatch(m) for form in known)} == set()
    assert {k for k in keys if re.sub(r"\.\d+", "", k) not in KEYS | {"data.jsonl"}} == set()


def commands(text: str) -> Iterator[list[str]]:
    """The calls of `headrace` in blocks of code, as words."""
    # Every other piece stands between two fences.
    for block in re.split(r"^```.*$", text, flags=re.MULTILINE)[1::2]:
        for line in block.replace("\\\n", " ").splitlines():
            if call := re.match(r"(?:\$ )?(?:\w+=\S+ )*headrace (.*)", line):
                words = shlex.split(call[1], comments=True)
                words = words[: words.index("--")] if "--" in words else words
                yield [word for word in words if word != "…"]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_the_commands_that_a_document_shows_are_understood(page: Path) -> None:
    whole: Any = get_command(root)
    for words in commands(page.read_text()):
        command = whole
        context = command.make_context("headrace", list(words))
        while words and hasattr(command, "commands"):
            name, command, words = command.resolve_command(context, words)
            # It parses, and does not run.
            context = command.make_context(name, list(words), parent=context)


def scored(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The calls of `headrace score` without a dataset, as words, with the lines that each prints. A
    text that is piped into a call stands in the place of its `-`."""
    for block in blocks(text, "console"):
        for call in re.split(r"^\$ ", block, flags=re.MULTILINE):
            command, *printed = call.splitlines() or [""]
            pipe, is_score, score_call = command.rpartition("headrace score ")
            if not is_score or "--dataset" in score_call:
                continue
            piped = shlex.split(pipe)[1].replace("\\n", "\n") if pipe else ""
            yield [piped if word == "-" else word for word in shlex.split(score_call)], printed


def test_the_scores_of_the_cookbook_are_those_of_the_verifiers() -> None:
    text = (ROOT / "docs/guide/rewards-cookbook.md").read_text()
    module: dict[str, Any] = {}
    exec(blocks(text, "python")[0], module)
    module["test_short"]()
    own = FunctionVerifier("short", module["short"])
    tried = list(scored(text))
    assert len(tried) > 8
    for (verifier, completion, *options), printed in tried:
        given = dict(zip(options[::2], options[1::2], strict=True))
        params = yaml.safe_load(given["--set"].replace("=", ": ", 1)) if "--set" in given else {}
        answer = given.get("--answer")
        if verifier == "grader":
            outcome = graded(params["grader"], Item(verifier, "", completion, answer, params))
            parsed = GraderParams.model_validate(params)
            verdict = verdict_of(parsed.grader, outcome, parsed.on_timeout)
        elif verifier in VERIFIERS:
            verdict = score(verifier, completion, yaml.safe_load(answer or "null"), **params)
        else:
            item = Item("short", "", completion, None, params)
            verdict = own.score(item, parse_params(own, params))
        assert printed[0] == f"{verdict.status}, reward {verdict.reward:g}", completion
        assert printed[1:] == ([f"  detail: {verdict.detail}"] if verdict.detail else [])
