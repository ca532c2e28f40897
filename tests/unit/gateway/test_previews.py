"""Rows as a submission shows them, rendered by a real child process."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from learner.batch.row_counts import counted
from services.contracts.config import RLConfig, SFTConfig, parse_config
from services.contracts.preview import PreviewJob, Rendering, RowCounts, shortened
from services.contracts.records import DatasetRecord
from services.contracts.rows.dataset import Row
from services.datasets import append_rows
from services.gateway import previews
from services.gateway.previews import Previews, Shown
from services.gateway.submission import row_sample
from services.gateway.submission.model_check import check_stop_tokens
from services.gateway.submission.row_problems import count_problems, rows_to_count
from services.gateway.submission.row_sample import DatasetOptions, RowSample, read_rows
from services.gateway.submission.template_check import template_use, template_warnings
from services.models import ModelFolder
from services.volume import Volume
from tests.unit.rollout.chat_templates import CALLS, CHATML, tokenizer_of

USER = {"role": "user", "content": "2+2"}
POSITIONS = 4096
CONTENT = "m.content if m.role != 'tool' else '' }}"
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
    # The limit is CPU time, of which a busy machine gives the child little.
    monkeypatch.setattr(previews, "MOST_SECONDS", 200.0)
    volume = Volume(tmp_path)
    record = dataset(volume, Row(prompt="2+2", answer={"tests": ["4"]}), Row(prompt="1+1"))
    shows = Previews(volume)
    samples = read_rows(config(), {"data.dataset": record}, volume)
    counts = rows_to_count(config(), samples, POSITIONS)
    found = await shows.of(config(), record, model, Shown([0, 1]), counts)
    assert found.counts["data.dataset"].rows == 2
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
    assert await shows.of(config(), record, model, Shown([0, 1]), counts) == found
    # Another folder with the same files needs no other process.
    copied, renamed = tmp_path / "copied", config(model={"path": "copied"})
    shutil.copytree(model, copied)
    assert await shows.of(renamed, record, copied, Shown([0, 1]), counts) == found


async def test_the_child_process_gets_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "secret")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    seen: dict[str, str] = {}

    async def spawned(*words: str, env: dict[str, str], **pipes: Any) -> None:
        seen.update(env)
        raise OSError("no memory")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawned)
    found = await previews._child("{}")
    assert found.note is not None
    assert "no process can be started here (no memory)" in found.note
    assert not [name for name in seen if "KEY" in name or name.startswith("HEADRACE")]
    # A model's vocabulary comes from its folder, and not from a cache in /tmp.
    assert seen["TIKTOKEN_CACHE_DIR"] == ""
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
    none = await shows.of(config(), None, None, Shown([0]))
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


def counts_of(
    checked: RLConfig | SFTConfig, volume: Volume, record: DatasetRecord, tokenizer: Any = None
) -> dict[str, RowCounts]:
    samples = read_rows(checked, {"data.dataset": record}, volume)
    rows = rows_to_count(checked, samples, POSITIONS)
    whole = checked.model_dump(mode="json")
    job = PreviewJob(config=whole, folder="", rows=[], characters=0, counted=rows)
    return counted(job, checked, tokenizer or tokenizer_of(CHATML))


def said_of(
    checked: RLConfig | SFTConfig, volume: Volume, record: DatasetRecord, tokenizer: Any = None
) -> tuple[list[tuple[str, str]], list[str]]:
    counts = counts_of(checked, volume, record, tokenizer)
    samples = read_rows(checked, {"data.dataset": record}, volume)
    return count_problems(checked, samples, counts, POSITIONS)


def test_prompts_longer_than_the_context_are_counted_and_refused_if_none_fits(
    tmp_path: Path,
) -> None:
    """A row has 19 tokens of the template, and a token for each character."""
    volume = Volume(tmp_path)
    record = dataset(volume, *[Row(prompt="2+2" * times) for times in (1, 9, 9, 9)])

    def said(context: int, **data: Any) -> tuple[list[tuple[str, str]], list[str]]:
        rollout = {"vllm": {"max_model_len": context}}
        sampling = {"max_tokens": context // 2}
        checked = config(rollout=rollout, sampling=sampling, data={"dataset": "d", **data})
        return said_of(checked, volume, record)

    assert said(92) == ([], [])
    assert said(80) == (
        [],
        [
            "data.dataset: the prompts of 3 of the 4 rows of sums leave their answers fewer tokens "
            "than sampling.max_tokens: they have 22 to 46 tokens (rollout.vllm.max_model_len 80, "
            "which prompt and answer share)"
        ],
    )
    problems, (warning,) = said(46)
    assert problems == []
    assert "3 of the 4 rows of sums are too long, and the run will leave such rows out" in warning
    assert "a prompt may have 45 (rollout.vllm.max_model_len 46" in warning
    ((key, refused),), warnings = said(22)
    assert (key, warnings) == ("data.dataset", [])
    assert refused.startswith("none of the 4 rows of sums fits: they have 22 to 46 tokens, and a")
    _, (warning,) = said(22, long_prompts="cut")
    assert warning.endswith("have more than 11 tokens: they will be cut (data.long_prompts)")
    ((_, refused),), _ = said(3000 + 10**6, template="{prompt}" + "!" * 5000)
    assert "(the model's positions 4,096" in refused


def test_a_dataset_of_a_mixture_is_counted_with_its_own_chat_template(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    record = dataset(volume, Row(prompt="2+2"))
    mix = [{"dataset": "d", "chat_template": own} for own in ("none", "auto", None)]
    checked = config(data={"dataset": "d", "name": "a", "mix": mix})
    keys = ["data.dataset", *(f"data.mix.{place}.dataset" for place in range(3))]
    samples = read_rows(checked, dict.fromkeys(keys, record), volume)
    rows = rows_to_count(checked, samples, POSITIONS)
    job = PreviewJob(
        config=checked.model_dump(mode="json"), folder="", rows=[], characters=0, counted=rows
    )
    found = counted(job, checked, tokenizer_of(CHATML))
    assert [found[key].most_tokens for key in keys] == [22, 3, 22, 22]


def test_supervised_rows_longer_than_a_row_may_be_are_refused(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    record = dataset(volume, *[Row(prompt="2+2" * times, answer="4") for times in (1, 9)])

    def said(**data: Any) -> tuple[list[tuple[str, str]], list[str]]:
        data = {"dataset": "d", "max_seq_len": 45, **data}
        return said_of(config("sft", data=data), volume, record)

    ((_, refused),), _ = said()
    assert refused.startswith(
        "1 of the 2 rows of sums are longer than the 45 tokens that a row may have (data.max_"
    )
    problems, (warning,) = said(overlong="skip")
    assert (problems, warning) == ([], f"data.dataset: {refused}")
    assert said(overlong="crop") == ([], [])


def test_unknown_characters_and_dropped_tool_turns_of_prompts_are_counted(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    result = {"role": "tool", "content": "4"}
    used: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        result,
        USER,
    ]
    record = dataset(volume, Row(prompt=used), Row(prompt="2+2"), Row(prompt="a + b"))
    assert said_of(config(), volume, record) == ([], [])
    deaf = tokenizer_of(CHATML.replace(CALLS, "").replace("m.content }}", CONTENT))
    problems, warnings = said_of(config(), volume, record, deaf)
    assert problems == []
    assert [text.partition(" that ")[0] for text in warnings] == [
        "data.dataset: 1 of the 3 rows of sums have calls of tools (`tool_calls`)",
        "data.dataset: 1 of the 3 rows of sums have results of tools (turns of the role `tool`)",
    ]
    plain = config(data={"dataset": "d", "chat_template": "none"})
    assert counts_of(plain, volume, record)["data.dataset"].left_out == {"tool_calls": 1}
    earlier = dataset(volume, Row(prompt=[USER, {"role": "assistant", "content": "4"}, USER]))
    assert said_of(config(), volume, earlier) == ([], [])
    forgetful = tokenizer_of(CHATML.replace("in messages", "in messages if m.role != 'assistant'"))
    _, (warning,) = said_of(config(), volume, earlier, forgetful)
    assert warning.startswith(
        "data.dataset: 1 of the 1 rows of sums have earlier answers (turns of the role `assistant`)"
        " that the model's chat template leaves out"
    )
    texts = dataset(volume, Row(prompt="1+1"), Row(prompt="2+2"), Row(prompt="a + b"))
    _, (warning,) = said_of(config(), volume, texts, knows_sums())
    assert warning.startswith(
        "data.dataset: 1 of the 3 rows of sums hold characters that the model's tokenizer does not "
        "know ('a', 'b'): the model reads an unknown token instead"
    )


def test_prompts_with_special_tokens_or_tools_of_their_own_are_counted(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    written = "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"
    columns = {"tools": [{"type": "function", "function": {"name": "add"}}]}
    record = dataset(
        volume, Row(prompt="2+2"), Row(prompt=written), Row(prompt="1", columns=columns)
    )
    problems, (tools, special) = said_of(config(), volume, record)
    assert problems == []
    assert tools.startswith("data.dataset: 1 of the 3 rows of sums have a column `tools`, which")
    assert special.startswith(
        "data.dataset: 1 of the 3 rows of sums hold text of special tokens ('<|im_end|>', "
        "'<|im_start|>'), which"
    )
    plain = config(data={"dataset": "d", "chat_template": "none"})
    assert said_of(plain, volume, record) == ([], [tools])
    parser = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
    episode = {"episode": {"type": "tools", "servers": ["math"]}, "vllm": {"extra": parser}}
    assert said_of(config(rollout=episode), volume, record) == ([], [special])


def test_ids_of_stop_tokens_that_the_model_does_not_have_are_refused() -> None:
    stops = config(sampling={"stop_token_ids": [2, 320]})
    assert isinstance(stops, RLConfig)
    assert check_stop_tokens(ModelFolder(Path("m"), {"vocab_size": 321}), stops) == []
    assert check_stop_tokens(ModelFolder(Path("m"), {"vocab_size": 320}), stops) == [
        (
            "sampling.stop_token_ids",
            "the model has 320 tokens, and none of the id 320: leave such ids out",
        )
    ]


def knows_sums() -> Any:
    """A token for each character of a sum."""
    known = {character: id for id, character in enumerate("0123456789+= \n?")}
    made = Tokenizer(BPE(vocab={**known, "<unk>": len(known)}, merges=[], unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def test_rows_that_cannot_be_rendered_refuse_a_run_that_would_fail() -> None:
    record = DatasetRecord(id="d", name="sums", rows=9, created=0.0, segments=[])
    some = RowCounts(rows=8, unusable=1, first_unusable=(4, "no"))
    said = "row 4 of sums cannot be used: no"
    warned = [f"data.dataset: {said}; the run will leave such rows out"]

    def problems(kind: str, counts: RowCounts) -> tuple[list[tuple[str, str]], list[str]]:
        sample = RowSample(record, DatasetOptions("{prompt}", None, 0, True), {})
        return count_problems(config(kind), {"data": sample}, {"data.dataset": counts}, None)

    assert problems("rl", some) == ([], warned)
    assert problems("sft", some) == ([("data.dataset", said)], [])
    every = some.model_copy(update={"rows": 0, "unusable": 9})
    assert problems("rl", every) == (
        [("data.dataset", f"{said}; so it is with 9 of the 9 rows of sums")],
        [],
    )


def test_rare_rows_with_calls_that_a_template_drops_refuse_a_supervised_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = tokenizer_of(CHATML.replace(CALLS, ""))
    monkeypatch.setattr(row_sample, "MOST_ROWS", 10)
    call = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    plain = Row(prompt=[USER], answer="4")
    calls = Row(prompt=[USER], answer={"role": "assistant", "content": None, "tool_calls": [call]})
    volume = Volume(tmp_path)
    record = dataset(volume, *[plain] * 6, calls, *[plain] * 50, calls, *[plain] * 42)
    (problem,), _ = said_of(config("sft"), volume, record, deaf)
    assert problem[1].startswith(
        "row 6 of sums cannot be used: it has `tool_calls` (turn 2) that the model's "
        "chat template leaves out, so that a turn without it would be learned: take a model"
    )
    assert problem[1].endswith("; so it is with 2 of the 10 rows of sums that were counted")


def test_a_model_without_template_or_end_and_variables_for_nobody_are_warned_of() -> None:
    plain = Rendering(form="plain_text")
    (said,) = template_warnings(plain, config())
    assert said.startswith("data.chat_template: the model has no chat template")
    none = config(data={"dataset": "d", "chat_template": "none"})
    assert template_warnings(plain, none) == []
    assert template_warnings(Rendering(has_end=False), config()) == [
        "model.path: neither tokenizer nor generation config of the model name an end of sequence: "
        "only sampling.max_tokens end completions; set eos_token_id in the model's "
        "generation_config.json"
    ]
    assert template_warnings(Rendering(has_end=False), config("sft")) == []
    (unbegun,) = template_warnings(Rendering(unbegun="<|im_start|>assistant"), config())
    assert unbegun.startswith("data.chat_template: the model's chat template does not begin the")
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
        checked = config(kind, **sections)
        return template_use(checked, read_rows(checked, dict.fromkeys(keys, record), volume))

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
    monkeypatch.setattr(row_sample, "MOST_ROWS", 2)
    assert "2 of the 2 rows of sums that were looked at are chats" in warnings(data=data)[0]


def test_a_name_in_braces_that_nothing_replaces_gives_a_warning_with_the_columns(
    tmp_path: Path,
) -> None:
    volume = Volume(tmp_path)
    record = dataset(volume, Row(prompt="2+2", answer="4", columns={"topic": "sums"}))

    def warnings(**data: Any) -> list[str]:
        asked = config(data={"dataset": "d", **data})
        return template_use(asked, read_rows(asked, {"data.dataset": record}, volume))

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
