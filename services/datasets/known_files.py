"""Files of well-known datasets, as their authors ship them, by the name of a mapping.

A mapping makes each row's prompt and reference, and says how models are asked and scored
(`DatasetDefaults`). Pure: dictionaries in, rows out. Every refusal names the place and the way out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.nearest import did_you_mean
from services.contracts.config.rewards import RewardComponent
from services.contracts.records import DatasetDefaults
from services.contracts.rows.dataset import Row
from services.datasets.columns import Source
from services.datasets.row_checks import DatasetError, check_columns, check_prompt, names_in


@dataclass(frozen=True)
class KnownFile:
    """Turns the rows of one well-known file into rows of a dataset."""

    name: str
    needs: tuple[str, ...]
    """Columns that the file must have; `a|b`: at least one of the two."""
    prompt: Callable[[Source], Any]
    """Return the question of a row, without the template's instructions. Raises ValueError."""
    answer: tuple[str, ...]
    """The columns of the reference. A single column gives its value; several columns give an object
    of the columns that the row has."""
    defaults: DatasetDefaults

    def row(self, place: str, source: Source) -> Row:
        """Make the row at `place` (e.g. `line 3`). Raises DatasetError."""
        for wanted in self.needs:
            if not any(source.get(name) is not None for name in wanted.split("|")):
                if nulls := [name for name in wanted.split("|") if name in source]:
                    raise DatasetError(
                        f"{place}: column {names_in(nulls)} is null, and the mapping {self.name} "
                        "needs its value: fill it in, or remove the row"
                    )
                either = " or ".join(map(repr, wanted.split("|")))
                raise DatasetError(
                    f"{place} has no column {either}, which the mapping {self.name} needs; it has: "
                    f"{names_in(source)}. Choose another mapping, or name the columns yourself"
                )
        try:
            prompt = self.prompt(source)
        except ValueError as error:
            raise DatasetError(f"{place}: {error}") from None
        check_prompt(place, prompt)
        answer: Any = {name: source[name] for name in self.answer if source.get(name) is not None}
        if len(self.answer) == 1:
            answer = source[self.answer[0]]
        rest = {name: value for name, value in source.items() if name not in self._used}
        check_columns(place, rest)
        return Row(prompt=prompt, answer=answer, columns=rest)

    @property
    def _used(self) -> set[str]:
        """Columns that verifiers find in the prompt or in the reference."""
        asked = {"question", "problem", "prompt", "text"} & {
            name for column in self.needs for name in column.split("|")
        }
        return {*self.answer, *asked}


def _mbpp(source: Source) -> str:
    """Return the task with its tests: the tests name the function, so MBPP's authors show them
    too."""
    text = source.get("text") or source.get("prompt")
    tests = source["test_list"]
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise ValueError(f"test_list of MBPP is a list of asserts, not {tests!r:.60}")
    return f"{text}\n\nYour code should pass these tests:\n\n" + "\n".join(tests)


def _countdown(source: Source) -> str:
    """Return the question as TinyZero, which made the files, asks it."""
    return (
        f"Using the numbers {source['nums']}, create an equation that equals {source['target']}. "
        "You can use basic arithmetic operations (+, -, *, /) and each number can only be used "
        "once."
    )


def _defaults(template: str, verifier: str, **params: Any) -> DatasetDefaults:
    return DatasetDefaults(
        template=template, rewards=[RewardComponent(verifier=verifier, params=params)]
    )


KNOWN_FILES = {
    known.name: known
    for known in (
        KnownFile(
            "gsm8k",
            ("question", "answer"),
            lambda row: row["question"],
            ("answer",),
            _defaults(
                "{prompt}\n\nSolve it step by step. Then give the final number after ####.", "math"
            ),
        ),
        KnownFile(
            "math",
            ("problem", "solution"),
            lambda row: row["problem"],
            ("solution",),
            _defaults(
                "{prompt}\n\nReason step by step, and put the final answer within \\boxed{}.",
                "math",
            ),
        ),
        KnownFile(
            "humaneval",
            ("prompt", "test", "entry_point"),
            lambda row: row["prompt"],
            ("prompt", "test", "entry_point"),
            _defaults(
                "Complete this Python function. Answer with the whole function in one block of "
                "code.\n\n```python\n{prompt}\n```",
                "code",
            ),
        ),
        KnownFile(
            "mbpp",
            ("text|prompt", "test_list"),
            _mbpp,
            ("test_list", "test_setup_code", "test_imports"),
            _defaults("{prompt}\n\nAnswer with the Python program in one block of code.", "code"),
        ),
        KnownFile(
            "ifeval",
            ("prompt", "instruction_id_list", "kwargs"),
            lambda row: row["prompt"],
            ("instruction_id_list", "kwargs"),
            _defaults("{prompt}", "ifeval"),
        ),
        KnownFile(
            "countdown",
            ("nums", "target"),
            _countdown,
            ("nums", "target"),
            _defaults(
                "{prompt} Think first, then give the equation within <answer> </answer> tags, for "
                "example <answer> (1 + 2) / 3 </answer>.",
                "countdown",
            ),
        ),
        KnownFile(
            "reasoning_gym",
            ("question", "metadata"),
            lambda row: row["question"],
            ("answer", "metadata"),
            _defaults(
                "{prompt}\n\nThink first, then give the final answer within <answer> </answer> "
                "tags.",
                "reasoning_gym",
            ),
        ),
    )
}


def known_file(name: str) -> KnownFile:
    known = KNOWN_FILES.get(name)
    if known is None:
        raise DatasetError(
            f"there is no mapping {name[:80]!r}{did_you_mean(name, KNOWN_FILES)}; there is "
            f"{', '.join(KNOWN_FILES)}, or JSON that names the columns"
        )
    return known
