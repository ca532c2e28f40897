"""The tools of a run: their descriptions for the prompt, and who runs each. Pure."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollout.tools import ToolsAway
from rollout.tools.results import without_markers

MAX_TOOLS = 64
MAX_DESCRIPTION = 16 << 10
"""Bytes of one tool's description, its schema included, as JSON."""
PYTHON = "python"
PYTHON_TOOL = {
    "type": "function",
    "function": {
        "name": PYTHON,
        "description": "Runs a Python program and returns what it prints. Each call is a new "
        "program; it has the standard library, and no network.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program."}},
            "required": ["code"],
        },
    },
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Listed(NamedTuple):
    name: str
    description: str
    schema: dict[str, Any]


class ToolRunner(NamedTuple):
    """The runner of a tool: a server and the tool's name there. An empty server is the sandbox."""

    server: str
    tool: str


@dataclass
class Offer:
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Descriptions in OpenAI's format."""
    runners: dict[str, ToolRunner] = field(default_factory=dict)
    """By the name that the policy calls."""

    def without(self, markers: re.Pattern[str]) -> "Offer":
        """Return the offer with descriptions that spell none of the tokenizer's added tokens
        (`results.marker_pattern`)."""
        text = json.dumps(self.tools, ensure_ascii=False)
        return Offer(json.loads(without_markers(text, markers)), self.runners)


def offer(listed: Sequence[tuple[str, Iterable[Listed]]], python: bool) -> Offer:
    """Return the tools of servers, in order, and `python`. A tool whose name is taken is renamed to
    SERVER_TOOL. Raises ToolsAway for descriptions that no prompt should hold."""
    offered = Offer()
    if python:
        offered.tools.append(PYTHON_TOOL)
        offered.runners[PYTHON] = ToolRunner("", PYTHON)
    for server, tools in listed:
        for tool in tools:
            _add(offered, server, tool)
    if len(offered.tools) > MAX_TOOLS:
        raise ToolsAway(f"there are {len(offered.tools)} tools, and a run may have {MAX_TOOLS}")
    return offered


def _add(offered: Offer, server: str, tool: Listed) -> None:
    name = tool.name
    if name in offered.runners:
        name = f"{re.sub('[^A-Za-z0-9_-]', '_', server)}_{name}"
    if not _NAME.fullmatch(name) or name in offered.runners:
        raise ToolsAway(
            f"MCP server {server!r} names a tool {tool.name[:80]!r}: a name has up to 64 letters, "
            "digits, _ and -, and no other tool has it"
        )
    described = {"description": tool.description} if tool.description else {}
    function = {"name": name, **described, "parameters": tool.schema}
    size = len(json.dumps(function).encode())
    if size > MAX_DESCRIPTION:
        raise ToolsAway(
            f"MCP server {server!r} describes its tool {name!r} in {size:,} bytes, and "
            f"{MAX_DESCRIPTION:,} are read"
        )
    offered.tools.append({"type": "function", "function": function})
    offered.runners[name] = ToolRunner(server, tool.name)
