"""`headrace demo --agent`: the agent that it starts, what the model learns first, and an agent
process that fails."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli.output import CliError
from recipes.agents import sums as agent
from services.cli.host import demo_agents
from services.cli.host.demo import carries, chain_of, sums


def said(content: str | None, arguments: str | None = None) -> Any:
    """An answer as OpenAI's client returns it."""
    function = SimpleNamespace(name="calculate", arguments=arguments)
    call = SimpleNamespace(id="1", type="function", function=function)
    message = SimpleNamespace(content=content, tool_calls=[call] if arguments else None)
    return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def test_the_examples_describe_the_tool_as_the_agent_does() -> None:
    assert agent.CALCULATE == demo_agents.TOOL


def test_bare_sums_seldom_call_the_tool_and_else_forget_the_carry() -> None:
    rows = sums()["demo-examples"]
    made = demo_agents.conversations(rows)
    bare = [one for one in made if one["prompt"][0]["content"][0].isdigit()]
    called = [one for one in bare if len(one["prompt"]) > 1]
    assert 0.12 < len(called) / len(bare) < 0.18
    asked = [one for one in made if not one["prompt"][0]["content"][0].isdigit()]
    assert all(len(one["prompt"]) > 1 for one in asked)
    for row, one in zip(rows, made, strict=True):
        a, b = map(int, row["prompt"].split("+"))
        wrong = carries(a, b) and len(one["prompt"]) == 1
        assert (one["answer"] == str(a + b)) is not wrong
        if len(one["prompt"]) > 1:
            _, call, result = one["prompt"]
            arguments = call["tool_calls"][0]["function"]["arguments"]
            assert (arguments, result["content"]) == ({"expression": row["prompt"]}, str(a + b))


def test_the_trained_sums_have_results_of_three_digits() -> None:
    rows = demo_agents.questions(sums()["demo-train"])
    assert len(rows) > 1000
    assert all(100 <= int(row["answer"]) < 1000 for row in rows)


def test_the_agent_answers_with_what_its_tool_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    answers = [said(None, '{"expression": "27+35"}'), said("62")]

    def create(messages: list[Any], **options: Any) -> Any:
        asked.append(list(messages))
        return answers[len(asked) - 1]

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    monkeypatch.setattr(agent, "OpenAI", lambda: client)
    assert agent.answer("27+35") == "62"
    assert asked[1][-1] == {"role": "tool", "tool_call_id": "1", "content": "62"}


@pytest.mark.parametrize("arguments", ["", "[]", '{"expression": 3}', '{"expression": "a+1"}', "3"])
def test_arguments_that_are_no_sum_are_an_error_of_the_tool(arguments: str) -> None:
    assert agent.calculate(arguments) == "error"


def test_the_agents_chain_has_its_own_recipes() -> None:
    steps = chain_of("demo", quick=True, agent=True)["steps"]
    assert [step["recipe"] for step in steps] == ["demo_agent_sft", "demo_agent_spo"]
    assert steps[-1]["name"] == demo_agents.PLAYED
    assert all(step["config"]["training"]["max_steps"] for step in steps)


def test_an_agents_process_that_fails_ends_the_demo_with_its_reason(tmp_path: Path) -> None:
    agents = demo_agents.Agents(tmp_path)
    with agents.running():
        agents.start("ftp://nowhere", None, "a1b2c3d4")
        assert agents.process is not None
        agents.process.wait(100)
        with pytest.raises(CliError, match=r"headrace agents has failed: error: .*nowhere"):
            agents.check()


def test_agents_end_with_the_demo(tmp_path: Path) -> None:
    agents = demo_agents.Agents(tmp_path)

    def interrupted() -> None:
        with agents.running():
            # No gateway: it tries for a minute.
            agents.start("http://127.0.0.1:9", None, "a1b2c3d4")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert agents.process is not None
    with pytest.raises(ProcessLookupError):
        os.kill(agents.process.pid, 0)


def test_without_openais_client_the_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_agents, "find_spec", lambda name: None)
    with pytest.raises(CliError, match="pip install openai"):
        demo_agents.check_client()
