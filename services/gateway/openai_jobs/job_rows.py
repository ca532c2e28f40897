"""Turns the rows of a training file into rows of a dataset. Pure.

A job copies its rows when it is created, so a file that is deleted later does no harm.
"""

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from services.datasets import ColumnMapping
from services.gateway.openai_jobs.job_requests import MethodType
from services.gateway.openai_jobs.training_rows import BadRowError, problem_of

CHAT = ("messages", "tools", "functions", "parallel_tool_calls")
MAPPINGS = {
    "supervised": ColumnMapping("messages", "messages"),
    "dpo": ColumnMapping("prompt", ("chosen", "rejected")),
    "reinforcement": ColumnMapping("prompt"),
}
"""How the rows that `dataset_rows` makes become a dataset."""


def dataset_rows(file: BinaryIO, method: MethodType) -> Iterator[bytes]:
    """Iterate over the rows of a file as JSON lines of a dataset. Raises BadRowError."""
    convert = _CONVERTERS[method]
    for number, line in enumerate(file, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        row = msgspec.json.decode(text)
        problem = problem_of(row)
        if not problem:
            try:
                yield msgspec.json.encode(convert(row)) + b"\n"
            except ValueError as error:
                problem = str(error)
        if problem:
            raise BadRowError(f"line {number}: {problem}")


def _supervised(row: dict[str, Any]) -> dict[str, Any]:
    turns = _turns(row, "messages", "supervised")
    if all(turn["role"] != "assistant" for turn in turns):
        raise ValueError("messages have no turn of the assistant, so there is nothing to learn")
    if turns[-1]["role"] != "assistant":
        raise ValueError(f"the last message must be the assistant's, not the {turns[-1]['role']}'s")
    for number, turn in enumerate(turns):
        if "weight" in turn and turn["weight"] not in (0, 1, None):
            raise ValueError(f"messages.{number}.weight must be 0 or 1")
    learned = [turn for turn in turns if turn["role"] == "assistant" and turn.get("weight") != 0]
    if not learned:
        raise ValueError("each turn of the assistant has weight 0, so there is nothing to learn")
    return {"messages": turns, "columns": _tools(row) | _others(row, CHAT)}


def _dpo(row: dict[str, Any]) -> dict[str, Any]:
    if "input" not in row:
        raise ValueError("a row for dpo has input, preferred_output and non_preferred_output")
    asked = row["input"]
    columns = _tools(asked) | _others(row, ("input", "preferred_output", "non_preferred_output"))
    return {
        "prompt": [_turn(turn) for turn in asked["messages"]],
        "chosen": _answer(row, "preferred_output"),
        "rejected": _answer(row, "non_preferred_output"),
        "columns": columns,
    }


def _reinforcement(row: dict[str, Any]) -> dict[str, Any]:
    turns = _turns(row, "messages", "reinforcement")
    if turns[-1]["role"] == "assistant":
        raise ValueError(
            "the last message is the assistant's, and a reinforcement job samples the answer: end "
            "with the user's"
        )
    if row.get("tools"):
        raise ValueError("tools are not supported in rows of a reinforcement job: leave them out")
    return {"prompt": turns, "columns": _others(row, CHAT)}


_CONVERTERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "supervised": _supervised,
    "dpo": _dpo,
    "reinforcement": _reinforcement,
}


def _turns(row: dict[str, Any], name: str, method: str) -> list[dict[str, Any]]:
    if name not in row:
        raise ValueError(f"a row for a {method} job has {name}")
    return [_turn(turn) for turn in row[name]]


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    """Return a message in today's form: older ones have `function_call` and the role `function`."""
    kept = {name: value for name, value in turn.items() if value is not None}
    if kept["role"] == "function":
        kept["role"] = "tool"
    if call := kept.pop("function_call", None):
        kept["tool_calls"] = [{"type": "function", "function": call}]
    return kept


def _answer(row: dict[str, Any], name: str) -> dict[str, Any]:
    turns = [_turn(turn) for turn in row[name]]
    if len(turns) != 1 or turns[0]["role"] != "assistant":
        raise ValueError(f"{name} must be one message, the assistant's")
    return turns[0]


def _tools(holder: dict[str, Any]) -> dict[str, Any]:
    if tools := holder.get("tools"):
        return {"tools": tools}
    functions = holder.get("functions")
    if not isinstance(functions, list) or not functions:
        return {}
    return {"tools": [{"type": "function", "function": function} for function in functions]}


def _others(row: dict[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in used}
