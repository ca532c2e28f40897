"""Descriptions of tools in a prompt, and results as the policy reads them."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import normalizers

from rollout.tools import ToolsAway
from rollout.tools.offer import MAX_TOOLS, Listed, ToolRunner, offer
from rollout.tools.results import (
    CUT,
    MAX_CHARACTERS,
    marker_pattern,
    readable,
    text_of_result,
    without_markers,
)
from rollout.vllm.model_files import TokenizerLike
from tests.unit.rollout.chat_templates import CHATML, tokenizer_of

SCHEMA = {"type": "object"}


def listed(*names: str) -> list[Listed]:
    return [Listed(name, "", SCHEMA) for name in names]


def test_a_tool_whose_name_is_taken_is_called_by_its_server_too() -> None:
    found = offer([("one", listed("add", "python")), ("t.wo", listed("add"))], python=True)

    assert found.tools[1]["function"] == {"name": "add", "parameters": SCHEMA}

    assert [tool["function"]["name"] for tool in found.tools] == [
        "python",
        "add",
        "one_python",
        "t_wo_add",
    ]
    assert found.runners["one_python"] == ToolRunner("one", "python")
    assert found.runners["t_wo_add"] == ToolRunner("t.wo", "add")
    assert found.runners["python"].server == ""


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (listed("<|im_end|>"), "names a tool '<|im_end|>'"),
        (listed(*(f"t{n}" for n in range(MAX_TOOLS + 1))), "65 tools, and a run may have 64"),
        ([Listed("t", "x" * 20_000, SCHEMA)], "describes its tool 't' in 20,0.. bytes"),
        (listed("a", "a", "a"), "no other tool has it"),
    ],
    ids=["name", "number", "size", "twice"],
)
def test_oversized_and_misnamed_tools_are_refused(tools: list[Listed], said: str) -> None:
    with pytest.raises(ToolsAway, match=said.replace("|", r"\|")):
        offer([("one", tools)], python=False)


def test_neither_results_nor_descriptions_spell_special_tokens() -> None:
    markers = marker_pattern(["<|im_end|>", "<tool_call>", "[INST]", "  ", "a"])
    text = "a  b <|im_end|>\n<|im_start|> [INST] <tool_call>"

    assert without_markers(text, markers) == "a  b < |im_end|>\n<|im_start|> [ INST] < tool_call>"
    assert without_markers("\ud800", markers) == "?"
    described = offer([("one", [Listed("t", 'say "<|im_end|>"', SCHEMA)])], False).without(markers)
    assert described.tools[0]["function"]["description"] == 'say "< |im_end|>"'


@pytest.mark.parametrize(
    ("markers", "text", "plain"),
    [
        (["<a<b>", "<b>"], "<a<b><b>", "< a< b>< b>"),
        (["<a>", "<a>b>", "<ab>"], "<a>b><ab><ac>", "< a>b>< ab><ac>"),
        (["[A]", "[A][B]", "<.>"], "[A][B] <x> <.>", "[ A][B] <x> < .>"),
        ([f"<unused{n}>" for n in range(6000)], "<unused5999><unused6000>", "< unused5999><unu"),
        ([], "<a>", "<a>"),
    ],
    ids=["inside", "beginnings", "patterns", "many", "none"],
)
def test_each_of_many_markers_is_found(markers: list[str], text: str, plain: str) -> None:
    assert without_markers(text, marker_pattern(markers)).startswith(plain)


def test_a_result_is_its_text_and_the_kind_of_all_else() -> None:
    def block(**fields: Any) -> Any:
        return SimpleNamespace(**fields)

    blocks = [
        block(type="text", text="one"),
        block(type="image", data="…"),
        block(type="resource", resource=block(text="two")),
        block(type="resource", resource=block(blob="…")),
    ]
    assert text_of_result(blocks, None) == "one\n[image]\ntwo\n[resource]"
    assert text_of_result([], {"sum": 3}) == '{"sum": 3}'
    assert text_of_result([], None) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("12345", "12345"),
        ("123456", "12345" + CUT),
        # An incomplete character is dropped.
        ("1234é", "1234" + CUT),
    ],
)
async def test_a_long_result_is_cut_with_a_mark(text: str, shown: str) -> None:
    assert await readable(text, 5, marker_pattern([]), tokenizer_of(CHATML)) == shown


@pytest.mark.parametrize("limit", [12, 100])
async def test_no_result_spells_a_marker_after_a_tokenizer_has_normalised_it(limit: int) -> None:
    tokenizer = tokenizer_of(CHATML)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    text = "\N{FULLWIDTH LESS-THAN SIGN}|im_end|>, and more"

    shown = await readable(text, limit, marker_pattern(["<|im_end|>"]), tokenizer)

    (end,) = tokenizer("<|im_end|>", add_special_tokens=False)["input_ids"]
    assert end not in tokenizer(shown, add_special_tokens=False)["input_ids"]
    assert shown == ("< |im_end|>, " + CUT if limit == 12 else text)


async def test_a_result_of_megabytes_is_cut_before_it_is_read() -> None:
    marker, threads = "<|im_end|>", set()
    tokenizer = tokenizer_of(CHATML)

    class Noting:
        def __call__(self, text: str, **options: Any) -> Any:
            threads.add(threading.current_thread())
            return tokenizer(text, **options)

    noting = cast(TokenizerLike, Noting())
    shown = await readable(marker * 500_000, 100_000, marker_pattern([marker]), noting)

    assert shown.count("< |im_end|>") == MAX_CHARACTERS // len(marker)
    assert shown.endswith(CUT)
    assert threading.main_thread() not in threads
    assert threads
