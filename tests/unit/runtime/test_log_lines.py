"""Lines that a process keeps for readers elsewhere."""

import logging
import time
from collections.abc import Iterator

import pytest
from structlog.contextvars import bound_contextvars

from services.runtime.log_lines import KEPT, LONGEST, LogLines
from services.runtime.logs import configure, get_logger

SECRET = "hr-5b1f09c2d4"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogLines]:
    monkeypatch.setenv("WANDB_API_KEY", "3f9cafe77aa0")
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    configure("learner")
    handler = LogLines("learner/0", [SECRET])
    root.addHandler(handler)
    yield handler
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_has_its_message_its_details_and_its_run(lines: LogLines) -> None:
    with bound_contextvars(run="1a2b3c4d"):
        get_logger("learner").info("vLLM serves", seconds=41.3, reason=None)
    logging.getLogger("uvicorn").warning("%d connections", 7)
    first, second = lines.take()

    assert (first.text, first.level, first.run) == ("vLLM serves  seconds=41.3", "info", "1a2b3c4d")
    assert (first.process, first.time > 0) == ("learner/0", True)
    assert (second.text, second.level, second.run) == ("7 connections", "warning", None)
    assert lines.take() == []


def test_a_line_has_the_traceback_of_its_error(lines: LogLines) -> None:
    try:
        raise ValueError("no such layer")
    except ValueError:
        get_logger("learner").exception("step failed", step=3)
    (line,) = lines.take()

    assert line.text.startswith("step failed  step=3\nTraceback (most recent call last):\n")
    assert line.text.endswith("\nValueError: no such layer")
    assert line.level == "error"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"the key is {SECRET}.", "the key is ***."),
        ("wandb has 3f9cafe77aa0", "wandb has ***"),
        ("redis://u:pw@host:6379/0", "redis://***@host:6379/0"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("password=swordfish, token: 12", "password=***, token: ***"),
        ("--api-key abcdef", "--api-key ***"),
        ("hf_AbCd1234 is a token", "*** is a token"),
    ],
)
def test_secrets_are_masked(lines: LogLines, text: str, shown: str) -> None:
    get_logger("learner").error(text)

    assert lines.take()[0].text == shown


def test_a_long_row_of_dashes_does_not_hold_up_the_process(lines: LogLines) -> None:
    began = time.process_time()
    get_logger("learner").info("-" * 20_000)

    assert time.process_time() - began < 2


def test_control_characters_of_a_line_are_shown_as_escapes(lines: LogLines) -> None:
    get_logger("learner").info("a\x1b[2Jb\u202ec")

    assert lines.take()[0].text == "a\\u001b[2Jb\\u202ec"


def test_a_long_line_loses_its_middle(lines: LogLines) -> None:
    get_logger("learner").info("b" * 9000 + "end")
    (line,) = lines.take()

    assert len(line.text) <= LONGEST
    assert line.text.endswith("end")


def test_of_too_many_lines_the_newest_are_kept_and_a_line_says_how_many_are_not() -> None:
    lines = LogLines("gateway")
    for number in range(KEPT + 5):
        lines.add(str(number), logging.INFO)
    said, *kept = lines.take()

    assert said.text == "5 earlier lines are left out here: they came too fast"
    assert [line.text for line in kept] == [str(number) for number in range(5, KEPT + 5)]


def test_lines_that_could_not_be_sent_stand_before_later_ones() -> None:
    lines = LogLines("gateway")
    lines.add("first", logging.INFO)
    taken = lines.take()
    lines.add("second", logging.INFO)
    lines.put_back(taken)

    assert [line.text for line in lines.take()] == ["first", "second"]
