"""A plain function of the user's is a verifier."""

from collections.abc import Callable
from typing import Any

import pytest

from reward.verifiers.base import BadReferenceError, Item, correct
from reward.verifiers.plain_function import FunctionVerifier
from reward.verifiers.registry import build_registry, parse_params


def verdict(function: Callable[..., Any], **given: Any) -> tuple[str, float | None, str]:
    verifier = FunctionVerifier("mine", function)
    params = given.pop("params", {})
    parts = {"prompt": "1+1", "completion": "2", "answer": "2", "params": {}, **given}
    item = Item("mine", **parts)
    scored = verifier.score(item, parse_params(verifier, params))
    return scored.status.value, scored.reward, scored.detail


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.25, ("scored", 0.25, "")),
        (3, ("scored", 3.0, "")),
        (True, ("correct", 1.0, "")),
        (False, ("wrong", 0.0, "")),
        ((0.5, "half"), ("scored", 0.5, "half")),
        ((True, "equal"), ("correct", 1.0, "equal")),
        (correct("by hand"), ("correct", 1.0, "by hand")),
        (None, ("error", None, "mine returned None: the answer is masked from the loss")),
    ],
)
def test_the_value_of_a_function_is_the_verdict(value: Any, expected: tuple[Any, ...]) -> None:
    def reward(completion: str) -> Any:
        return value

    assert verdict(reward) == expected


def test_a_value_of_another_type_is_an_error_that_says_what_to_return() -> None:
    def reward(completion: str) -> Any:
        return "good"

    status, number, detail = verdict(reward)
    assert (status, number) == ("error", None)
    assert "mine returned str: return a number, True or False" in detail


def test_a_function_gets_the_parts_of_the_item_and_the_columns_that_it_names() -> None:
    seen: dict[str, Any] = {}

    def reward(prompt, completion, answer, after_thoughts, level, factor: float = 2.0):
        seen.update(prompt=prompt, after=after_thoughts, level=level)
        return factor * len(answer)

    columns = {"level": 3, "other": 1}
    found = verdict(reward, completion="<think>a</think>2", columns=columns, params={"factor": 0.5})
    assert found == ("scored", 0.5, "")
    assert seen == {"prompt": "1+1", "after": "2", "level": 3}
    with pytest.raises(BadReferenceError, match="the row has no column 'level'"):
        verdict(reward)


def test_a_default_is_a_parameter_with_its_type() -> None:
    def reward(completion: str, most: int = 3) -> bool:
        return len(completion) <= most

    schema = FunctionVerifier("mine", reward).Params.model_json_schema()["properties"]
    assert (schema["most"]["type"], schema["most"]["default"]) == ("integer", 3)
    with pytest.raises(ValueError, match="most"):
        verdict(reward, params={"most": "many"})


def test_trls_signature_gets_lists_of_one() -> None:
    seen: dict[str, Any] = {}

    def reward(completions, **kwargs):
        seen.update(kwargs, completions=completions)
        return [1.0 for _ in completions]

    assert verdict(reward, columns={"level": 3}) == ("scored", 1.0, "")
    assert seen == {"completions": ["2"], "prompts": ["1+1"], "answer": ["2"], "level": [3]}
    chat = [{"role": "user", "content": "1+1"}]
    verdict(reward, prompt=chat)
    assert seen["completions"] == [[{"role": "assistant", "content": "2"}]]

    def two(completions: list[str], answer: list[str]) -> list[float]:
        return [1.0, 2.0]

    assert verdict(two)[0] == "error"


def test_a_coroutine_is_awaited() -> None:
    async def reward(completion: str) -> float:
        return 0.5

    assert verdict(reward) == ("scored", 0.5, "")


def test_an_entry_may_name_a_function_and_give_it_a_name(tmp_path: Any) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def short(completion, answer):\n    'Short.'\n    return len(completion) < 3\n"
        "def odd(text):\n    return 1\nnumber = 1\n"
    )
    registry = build_registry([f"{file}:short", f"brief@2={file}:short", f"{file}:odd"])
    assert (registry["short"].description, registry["short"].available) == ("Short.", True)
    assert registry["brief@2"].name == "brief@2"
    assert registry["brief@2"].available
    notice = registry[f"{file}:odd"].notice
    assert "the function odd has another form: it must take `completion`" in notice
