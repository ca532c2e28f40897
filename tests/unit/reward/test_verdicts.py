"""Every row of `verdicts.txt`: completions, their references, and the right verdict."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.reward.scoring import score


class Row(NamedTuple):
    verifier: str
    kind: str
    verdict: str
    reference: str
    completion: str


def read_rows(text: str) -> Iterator[Row]:
    verifier = kind = ""
    for line in text.splitlines():
        if line.startswith("## "):
            verifier, _, kind = line.removeprefix("## ").partition(": ")
        elif line and not line.startswith("#"):
            verdict, reference, completions = line.split(" | ", 2)
            for completion in completions.split("  ¦  "):
                whole = completion.replace("↵", "\n")
                if whole.startswith("□ "):
                    whole = f"\\boxed{{{whole[2:]}}}"
                yield Row(verifier, kind, verdict, reference, whole)


ROWS = [*read_rows(Path(__file__).with_name("verdicts.txt").read_text("utf-8"))]
SECTIONS = list(dict.fromkeys((row.verifier, row.kind) for row in ROWS))


def test_the_table_has_thousands_of_different_rows() -> None:
    assert len(set(ROWS)) == len(ROWS) > 3000


@pytest.mark.parametrize(("verifier", "kind"), SECTIONS)
def test_every_row_of_a_section_has_its_verdict(verifier: str, kind: str) -> None:
    rows = [row for row in ROWS if (row.verifier, row.kind) == (verifier, kind)]
    given = [(row, score(verifier, row.completion, row.reference)) for row in rows]

    assert [
        (*row[2:], str(verdict.status), verdict.detail)
        for row, verdict in given
        if (verdict.status, verdict.reward) != (row.verdict, float(row.verdict == "correct"))
    ] == []
