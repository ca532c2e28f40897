"""Rows as a submission shows them, rendered by a real child process."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.contracts.config import RLConfig, SFTConfig, parse_config
from services.contracts.preview import RenderedRow, Rendering, shortened
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import append_rows
from services.gateway import previews, row_check
from services.gateway.previews import Previews, Shown
from services.gateway.row_check import (
    Parts,
    first_rows,
    part_rows,
    parts_of,
    template_use,
    template_warnings,
    unusable_rows,
)
from services.volume import Volume
from tests.unit.rollout.chat_templates import CALLS, CHATML, tokenizer_of

USER = {"role": "user", "content": "2+2"}
GREEDY = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def config(kind: str = "rl", **sections: Any) -> RLConfig | SFTConfig:
    raw: dict[str, Any] = {"type": kind, "model": {"path": "m"}, "data": {"dataset": "d"}}
    raw |= {"rewards": [{"verifier": "math"}]} if kind == "rl" else {}
    return parse_config(raw | sections)


def dataset(volume: Volume, *rows: Row) -> DatasetRecord:
    segment = append_rows(volume.root, "d", list(rows))
    return DatasetRecord(id="d", name="sums", rows=len(rows), created=0.0, segments=[segment])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tokenizer_of(CHATML).save_pretrained(folder)
    return folder


async def test_a_child_process_renders_a_row_once(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that runs for ever ends with its limit, and is that row's problem."""
    volume = Volume(tmp_path)
    record = dataset(volume, Row(prompt="2+2", answer={"tests": ["4"]}), Row(prompt="1+1"))
    shows = Previews(volume)
    found = await shows.of(config(), record, model, Shown([0, 1]))
    texts = ["".join(piece.text for piece in row.pieces) for row in found.rows]
    asked = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    assert texts == [asked.format("2+2"), asked.format("1+1")]
    assert [row.reference for row in found.rows] == ['{"tests": ["4"]}', None]
    assert (found.form, found.note) == ("chat_template", None)

    greedy = config(data={"dataset": "d", "chat_template": "{{ messages }}" + GREEDY})
    refused = await shows.of(greedy, record, model, Shown([0]))
    assert "it runs for more than 2 s" in str(refused.rows[0].problem)

    async def never(job: str) -> Rendering:
        raise AssertionError(job)

    monkeypatch.setattr(previews, "_child", never)
    assert await shows.of(config(), record, model, Shown([0, 1])) == found


async def test_the_child_process_gets_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "secret")
    seen: dict[str, str] = {}

    async def spawned(*words: str, env: dict[str, str], **pipes: Any) -> None:
        seen.update(env)
        raise OSError("no memory")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawned)
    found = await previews._child("{}")
    assert found.note is not None
    assert "no process can be started here (no memory)" in found.note
    assert not [name for name in seen if "KEY" in name or name.startswith("HEADRACE")]
    missing = previews._answered(b"", "ModuleNotFoundError: No module named 'tokenizers'")
    assert missing.note is not None
    assert missing.note.startswith("this gateway has no tokenizers")


async def test_rows_without_a_tokenizer_are_shown_as_the_chat_template_gets_them(
    tmp_path: Path,
) -> None:
    volume = Volume(tmp_path)
    record = dataset(volume, Row(prompt=[USER]))
    system = {"dataset": "d", "system": "Be brief."}
    shows = Previews(volume)
    found = await shows.of(config(data=system), record, None, Shown([0]))
    assert found.rows[0].pieces[0].text == "[system] Be brief.\n\n[user] 2+2"
    assert found.note is not None
    assert found.note.startswith("the model is not on the gateway's host")
    scratch = config("sft", model={"source": "scratch"})
    made = await shows.of(scratch, record, None, Shown([0]))
    assert made.note is not None
    assert made.note.startswith("the model is made when the run begins")
    none = await shows.of(config(), None, None, first_rows(None, {}))
    assert (none.rows, none.note) == ([], "applications bring the prompts: there is no dataset")


async def test_rows_are_shown_even_if_the_tokenizer_does_not_load(
    tmp_path: Path, model: Path
) -> None:
    (model / "tokenizer.json").write_text("{}")
    volume = Volume(tmp_path)
    record = dataset(volume, Row(prompt="2+2"))
    found = await Previews(volume).of(config(), record, model, Shown([0]))
    assert found.rows[0].pieces[0].text == "2+2"
    assert found.rows[0].tokens is None
    assert found.note is not None
    assert found.note.startswith("its tokenizer does not load here: ")


def test_rows_from_the_whole_dataset_are_checked() -> None:
    record = DatasetRecord(id="d", name="d", rows=41, created=0.0, segments=[])
    assert first_rows(record, {}).indices == [0, 10, 20, 30, 40]
    assert first_rows(record.model_copy(update={"rows": 1}), {}).indices == [0]
    parts = {"tools": np.array([3, 40]), "tool_calls": np.arange(11, 20)}
    assert part_rows(parts).indices == [3, 11, 13, 15, 17, 19, 40]
    assert first_rows(record, parts).indices == [0, 3, 10, 11, 13, 15, 17, 19, 20, 30, 40]


def test_rows_that_cannot_be_rendered_refuse_a_run_that_would_fail() -> None:
    record = DatasetRecord(id="d", name="sums", rows=9, created=0.0, segments=[])
    wrong, right = RenderedRow(index=4, problem="no"), RenderedRow(index=0)
    some, none = Rendering(rows=[right, wrong]), Rendering(rows=[wrong])
    said = "row 4 of sums cannot be used: no"
    warned = [f"data.dataset: {said}; the run will leave such rows out"]
    of: tuple[str, DatasetRecord, Parts] = ("data.dataset", record, {})
    assert unusable_rows(some, config(), *of) == ([], warned)
    assert unusable_rows(some, config("sft"), *of) == ([("data.dataset", said)], [])
    assert unusable_rows(none, config(), *of) == ([("data.dataset", said)], [])
    assert unusable_rows(Rendering(rows=[right]), config("sft"), *of) == ([], [])


async def test_rare_rows_with_calls_that_a_template_drops_refuse_a_supervised_run(
    tmp_path: Path,
) -> None:
    tokenizer_of(CHATML.replace(CALLS, "")).save_pretrained(model := tmp_path / "model")
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    plain = Row(prompt=[USER], answer="4")
    calls = Row(prompt=[USER], answer={"role": "assistant", "content": None, "tool_calls": [call]})
    volume = Volume(tmp_path)
    record = dataset(volume, *[plain] * 6, calls, *[plain] * 50, calls, *[plain] * 42)
    parts = parts_of(config("sft"), record, volume)
    found = await Previews(volume).of(config("sft"), record, model, first_rows(record, parts))
    (problem,), _ = unusable_rows(found, config("sft"), "data.dataset", record, parts)
    assert problem[1].startswith(
        "row 6 of sums cannot be used: it has `tool_calls` (turn 2) that the model's "
        "chat template leaves out, so that a turn without it would be learned: take a model"
    )
    assert problem[1].endswith("; 2 of its 100 rows have `tool_calls`")
    assert found.rows[0].index == 0, "which is the row that is shown"
    assert parts_of(config(), record, volume) == {}


def test_a_model_without_a_template_and_variables_for_nobody_are_warned_of() -> None:
    plain = Rendering(form="plain_text")
    (said,) = template_warnings(plain, config())
    assert said.startswith("data.chat_template: the model has no chat template")
    none = config(data={"dataset": "d", "chat_template": "none"})
    assert template_warnings(plain, none) == []
    unread = Rendering(form="chat_template", unread_variables=["x"])
    assert template_warnings(unread, config()) == [
        "data.chat_template_kwargs.x: the model's chat template does not mention x, so it changes "
        "nothing"
    ]
    idle = Rendering(form="chat_template", idle_variables=["enable_thinking"])
    misspelt = {"dataset": "d", "chat_template_kwargs": {"enable_thinking": "fasle"}}
    assert template_warnings(idle, config(data=misspelt)) == [
        "data.chat_template_kwargs.enable_thinking: the first row is the same with and without "
        "enable_thinking = 'fasle': check the spelling of the value, unless it is the template's "
        "default"
    ]


def test_the_warning_counts_chats_without_the_template_or_system_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = Volume(tmp_path)
    own = [{"role": "system", "content": "Add."}, USER]
    record = dataset(volume, Row(prompt="2+2"), Row(prompt=[USER]), Row(prompt=own))

    def warnings(kind: str = "rl", **sections: Any) -> list[str]:
        keys = ("data.dataset", "data.mix.0.dataset", "evaluation.dataset")
        return template_use(config(kind, **sections), dict.fromkeys(keys, record), volume)

    data = {"dataset": "d", "template": "{prompt}!", "system": "Be brief."}
    template = (
        "template is for text prompts: 2 of the 3 rows of sums are chats, and stay as they are{}; "
        "upload their text as prompts, or write the words into the chats"
    )
    before = " but for data.system before them"
    system = (
        "system is not used for 1 of the 3 rows of sums: they are chats with a system message of "
        "their own"
    )
    assert warnings(data=data) == warnings("sft", data=data)
    assert warnings(data=data) == [f"data.{template.format(before)}", f"data.{system}"]
    assert warnings() == []
    mix = {"dataset": "d", "mix": [{"dataset": "e", "template": "{prompt}?"}]}
    held_out = {"dataset": "e", "system": "Be brief."}
    assert warnings(data=mix, evaluation=held_out) == [
        f"data.mix.0.{template.format('')}",
        f"evaluation.{system}",
    ]
    monkeypatch.setattr(row_check, "MOST_COUNTED", 2)
    assert "1 of the 2 rows of sums that were looked at are chats" in warnings(data=data)[0]


def test_a_name_in_braces_that_nothing_replaces_gives_a_warning_with_the_columns(
    tmp_path: Path,
) -> None:
    volume = Volume(tmp_path)
    record = dataset(volume, Row(prompt="2+2", answer="4", columns={"topic": "sums"}))

    def warnings(**data: Any) -> list[str]:
        asked = config(data={"dataset": "d", **data})
        return template_use(asked, {"data.dataset": record}, volume)

    left = (
        ": {question} stays in the text as it is, since %s; a row of sums has a prompt, a "
        "reference and, for verifiers alone, topic"
    )
    only = left % "only {prompt} is replaced"
    assert warnings(template="{question} {prompt}") == [f"data.template{only}"]
    nothing = left % "nothing is replaced"
    assert warnings(system="Answer {question}") == [f"data.system{nothing}"]
    assert warnings(template="{{prompt}}") == [
        "data.template: {{prompt}} keeps a pair of braces: write {prompt}"
    ]
    for braces in ('{"a": {"b": 1}}', r"\boxed{answer}", r"\frac{a}{b} x^{n}", "{}", "${home}"):
        assert warnings(template=f"{braces} {{prompt}}") == []


def test_a_long_text_lacks_its_middle() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("a" * 200 + "b" * 100, 90) == f"{'a' * 60} […210 characters…] {'b' * 30}"
