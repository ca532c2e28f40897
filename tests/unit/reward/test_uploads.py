"""Verifiers that are added while the reward service runs."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from reward.uploads import MOST_OUTPUT, Uploads, output_of
from reward.verifiers import added_verifiers
from reward.verifiers.registry import build_registry
from reward.verifiers.trial import VerifierTrial, tried
from services.contracts.verifiers import NewVerifier
from services.http import Problem

SHORT = "def reward(completion, answer):\n    return answer in completion\n"


def new(source: str = SHORT, file: str = "short.py", **more: str) -> NewVerifier:
    return NewVerifier(file=file, source=source, **more)


def uploads(data: Path, is_allowed: bool = True) -> Uploads:
    return Uploads(data, is_allowed, build_registry(added_verifiers.entries(data)))


async def test_each_file_of_a_name_is_the_next_version_and_all_can_be_named(tmp_path: Path) -> None:
    made = [await uploads(tmp_path).add(new()), await uploads(tmp_path).add(new(SHORT + "# 2\n"))]
    assert [(verifier.name, verifier.version) for verifier in made] == [("short", 1), ("short", 2)]
    registry = build_registry(added_verifiers.entries(tmp_path))
    assert all(registry[name].available for name in ("short", "short@1", "short@2"))
    assert uploads(tmp_path).versions() == {"short": [1, 2]}

    await uploads(tmp_path).remove("short@1")
    assert uploads(tmp_path).versions() == {"short": [2]}
    await uploads(tmp_path).remove("short")
    assert added_verifiers.entries(tmp_path) == []
    for unknown in ("short", "short@1", "short@x", "short@" + "9" * 5000, "../x", "math"):
        with pytest.raises(Problem, match="no verifier") as refused:
            await uploads(tmp_path).remove(unknown)
        assert refused.value.status == 404


async def test_no_later_file_gets_the_number_of_a_removed_version(tmp_path: Path) -> None:
    for _ in range(2):
        await uploads(tmp_path).add(new())
    await uploads(tmp_path).remove("short@2")
    assert (await uploads(tmp_path).add(new(SHORT + "# 3\n"))).version == 3
    with pytest.raises(Problem, match="no verifier 'short@'"):
        await uploads(tmp_path).remove("short@")
    await uploads(tmp_path).remove("short")
    assert (await uploads(tmp_path).add(new(SHORT + "# 4\n"))).version == 4
    assert added_verifiers.entries(tmp_path)[0].startswith("short@4=")


async def test_only_the_end_of_what_a_file_prints_is_kept() -> None:
    code = "import sys; sys.stderr.write('x' * (1 << 22)); print('end')"
    output = await output_of([sys.executable, "-c", code], 60)
    assert output is not None
    assert (output.code, output.out, len(output.errors)) == (0, b"end\n", MOST_OUTPUT)


async def test_a_file_that_prints_without_an_end_is_given_up_in_time() -> None:
    async with asyncio.timeout(20):
        assert await output_of(["yes"], 0.3) is None


async def test_nothing_is_added_unless_the_operator_allows_it(tmp_path: Path) -> None:
    for work in (uploads(tmp_path, False).add(new()), uploads(tmp_path, False).remove("short")):
        with pytest.raises(Problem, match="HEADRACE_VERIFIER_UPLOADS=true") as refused:
            await work
        assert refused.value.status == 403
    assert added_verifiers.entries(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def reward(completion:\n", "line 1: SyntaxError"),
        ("import nothing_of_this_name\n", "line 1 (import nothing_of_this_name): ModuleNotFound"),
        ("x = 1\n", "the file has no verifier: a class derives from Verifier, and a function"),
        (
            "def a(completion):\n    return 1\ndef b(completion):\n    return 1\n",
            "the file has several verifiers: name one of a, b",
        ),
        ("import os\nos._exit(3)\n", "its process ended with code 3"),
        ("raise SystemExit(2)\n", "line 1 (raise SystemExit(2)): SystemExit: 2"),
        (SHORT.replace("reward", "math"), "a verifier 'math' exists already"),
        (SHORT.replace("reward", "Short"), "'Short' is no name for a verifier"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_with_its_line(
    source: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(Problem) as refused:
        await uploads(tmp_path).add(new(source))
    assert refused.value.status == 422
    assert words in refused.value.detail
    assert added_verifiers.entries(tmp_path) == []


async def test_a_failing_test_is_shown_with_its_line(tmp_path: Path) -> None:
    source = SHORT + "def test_two():\n    assert reward('2', '3')\ndef test_one():\n    pass\n"
    with pytest.raises(Problem, match="its tests fail: test_two") as refused:
        await uploads(tmp_path).add(new(source))
    (problem,) = refused.value.problems
    assert (problem.path, problem.message) == (
        "test_two",
        "line 4 (assert reward('2', '3')): AssertionError",
    )


async def test_a_class_and_a_chosen_object_are_added_under_a_chosen_name(tmp_path: Path) -> None:
    source = (
        "from reward.verifiers.base import Verifier, VerifierParams, correct\n"
        "class Always(Verifier):\n    name = 'always'\n    description = 'Yes.'\n"
        "    Params = VerifierParams\n"
        "    def score(self, item, params):\n        return correct()\n" + SHORT
    )
    made = await uploads(tmp_path).add(new(source))
    assert (made.name, made.object, made.description) == ("always", "Always", "Yes.")
    made = await uploads(tmp_path).add(new(source, object="reward", name="within"))
    assert (made.name, made.object) == ("within", "reward")
    assert build_registry(added_verifiers.entries(tmp_path))["within"].available


def test_what_a_file_prints_does_not_hide_the_trial(tmp_path: Path) -> None:
    file = tmp_path / "loud.py"
    file.write_text("print('{}')\n" + SHORT)
    done = subprocess.run(
        [sys.executable, "-m", "reward.verifiers.trial", str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    trial = VerifierTrial.model_validate_json(done.stdout)
    assert (trial.name, trial.object, trial.problem) == ("loud", "reward", None)
    assert tried(file, "nothing").problem == "LookupError: the file has no 'nothing'"
