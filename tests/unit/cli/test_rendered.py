"""A terminal shows each character of a row that a model reads."""

from typing import Any

import pytest

from headrace.cli.runs.printed_rows import show_rendering
from services.contracts.preview import ReferenceVerdict, RenderedPiece, RenderedRow, Rendering


def shown(found: Rendering, capsys: pytest.CaptureFixture[str]) -> list[str]:
    show_rendering(found.model_dump(mode="json"))
    return capsys.readouterr().out.splitlines()


def row(*pieces: tuple[str, bool], **more: Any) -> RenderedRow:
    made = [RenderedPiece(text=text, trained=trained) for text, trained in pieces]
    return RenderedRow(index=0, pieces=made, **more)


def test_characters_that_nobody_would_see_are_visible(capsys: pytest.CaptureFixture[str]) -> None:
    one = row(("a\tb  \n\n[bold]\x1b[31m\u200b", False), tokens=9)
    assert shown(Rendering(form="plain_text", rows=[one]), capsys) == [
        "row 0, 9 tokens, as plain text",
        "  a→\tb··⏎".expandtabs(8),
        "  ⏎",
        "  [bold]\\u001b[31m\\u200b",
    ]


def test_trained_parts_are_marked_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    one = row(("Q\n", False), ("A<end>", True), ("\n", False), tokens=5, trained_tokens=2)
    assert shown(Rendering(form="chat_template", rows=[one]), capsys) == [
        "row 0, 5 tokens, 2 of them trained ⟦so⟧, by the chat template",
        "  Q⏎",
        "  ⟦A<end>⟧⏎",
    ]


def test_a_reference_its_verdict_a_problem_and_a_note_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict = ReferenceVerdict(verifier="math", reward=0.0, status="wrong", detail="no [answer]")
    one = row(("Q", False), reference="x\ny", verdicts=[verdict])
    wrong = RenderedRow(index=3, answer="chosen", problem="the template refuses it")
    assert shown(Rendering(rows=[one, wrong], note="not here"), capsys) == [
        "row 0, as the chat template gets it",
        "  Q",
        "  reference: x⏎",
        "  y",
        "  math of the reference as an answer: wrong, 0: no [answer]",
        "row 3, chosen",
        "  the template refuses it",
        "not here",
    ]
