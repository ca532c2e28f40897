"""The grammars of forced calls, as vLLM's own parsers of tool calls make them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e.conftest import TinyModel

pytestmark = pytest.mark.vllm
ARGUMENTS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def function(name: str, strict: bool = False) -> dict[str, Any]:
    about = {"name": name, "parameters": ARGUMENTS, "strict": strict}
    return {"type": "function", "function": about}


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def grammar(tiny_model: TinyModel) -> Any:
    from transformers import AutoTokenizer
    from vllm.parser import ParserManager

    from rollout.vllm_plugin.tool_call_grammar import tool_call_grammar

    tokenizer = AutoTokenizer.from_pretrained(tiny_model.folder)

    def made(parser: str, choice: Any, tools: list[dict[str, Any]], parallel: bool = True) -> Any:
        found = ParserManager.get_parser(tool_parser_name=parser, enable_auto_tools=True)
        renderer = SimpleNamespace(get_tokenizer=lambda: tokenizer)
        server = SimpleNamespace(renderer=renderer, model_config=None, parser=found)
        tag = tool_call_grammar(server, choice, tools, parallel).structural_tag
        return json.loads(tag)["format"]

    return made


@pytest.mark.parametrize(
    ("choice", "parallel", "one"),
    [("required", True, False), ("required", False, True), (NAMED, True, True)],
)
def test_a_call_is_in_the_model_s_format(
    grammar: Any, choice: Any, parallel: bool, one: bool
) -> None:
    tools = [function("add", strict=True), function("sub")]
    format = grammar("hermes", choice, tools, parallel)
    begins = {tag["begin"] for tag in format["tags"]}
    names = ["add"] if choice == NAMED else ["add", "sub"]
    assert begins == {
        f'<tool_call>{line}{{"name": "{name}", "arguments": '
        for name in names
        for line in ("", "\n")
    }
    assert (format["at_least_one"], format["stop_after_first"]) == (True, one)
    schemas = [tag["content"]["json_schema"] for tag in format["tags"] if "add" in tag["begin"]]
    assert schemas == [ARGUMENTS, ARGUMENTS]


def test_a_parser_without_a_grammar_of_its_format_refuses(grammar: Any) -> None:
    with pytest.raises(ValueError, match="no call can be forced: send auto"):
        grammar("xlam", "required", [function("add")])
