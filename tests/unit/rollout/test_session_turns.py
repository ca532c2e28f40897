"""Byte by byte: the training data of a session is what vLLM got and sampled, whatever a client does
with its conversations."""

import random
from typing import Any

import numpy as np
import pytest

from rollout.sessions.session_completions import completion, shared_prompt
from rollout.sessions.turn_sampler import Refused, TurnSampler
from rollout.vllm.client.policy_client import RequestRefused
from rollout.vllm.client.response import Sample, Span
from services.contracts.config import parse_config
from services.contracts.groups.branches import conversations
from services.contracts.sessions import Call, Turn
from services.contracts.weights import parse_version_tag
from services.gateway.openai.requests import chat_call
from services.gateway.sessions.histories import beginnings, continued, request_digest
from services.store.agents.sessions import PlayedSession
from tests.unit.rollout.chat_templates import (
    CHATML,
    LLAMA,
    LLAMA31,
    QWEN3,
    TOOLS,
    call,
    ends_of,
    tokenizer_of,
    tokens,
)

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
CONVERSATIONS = 170
"""For each of four templates and two histories: 1,360."""
ANSWERS = ["4", "né", "日本", "<think>\nhm\n</think>\n\n4", "🙂", " x\ny", ""]


class Engine:
    """Stands in for vLLM, its parsers and the weights: samples random bytes, also incomplete
    characters, and notes its requests."""

    def __init__(self, tokenizer: Any, chance: random.Random) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []
        self.live, self.forks = None, dict[str, int]()
        self._tokenizer, self._chance = tokenizer, chance

    async def until_proven(self, tags: list[str]) -> None:
        pass

    async def generate(self, prompt: list[int], n: int, params: Any) -> list[Sample]:
        chance = self._chance
        ids = tokens(self._tokenizer, chance.choice(ANSWERS))
        ids += [chance.randrange(256) for _ in range(chance.randint(0, 3))]
        ended = chance.random() < 0.8 or not ids
        if ended:
            ids.append(ends_of(self._tokenizer)[0])
        self.seen.append((prompt, ids))
        logprobs = np.linspace(-1, 0, len(ids), dtype=np.float32)
        spans = [Span(0, len(ids), f"a:{chance.randint(1, 3)}")]
        return [Sample(np.array(ids), logprobs, "stop" if ended else "length", spans)]

    async def message(self, parsed: Any) -> dict[str, Any]:
        text = self._tokenizer.decode(parsed.token_ids, skip_special_tokens=True)
        if parsed.tools and self._chance.random() < 0.5:
            name = self._chance.choice(["add", "add<|im_end|>"])
            most = 1 if self._tokenizer.chat_template == LLAMA31 else 2
            number = self._chance.randint(1, most)
            calls = [call(f"c{len(self.seen)}{n}", name) for n in range(number)]
            return {"role": "assistant", "content": None, "tool_calls": calls}
        # vLLM's messages have an empty list.
        return {"role": "assistant", "content": text, "tool_calls": []}


class Context:
    """The part of RunContext that turns need."""

    def __init__(self, tokenizer: Any, engine: Engine, history: str) -> None:
        extra = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
        raw: dict[str, Any] = {
            "model": {"path": "m"},
            "data": {"dataset": "d"},
            "rewards": [{"verifier": "exact"}],
            "sampling": {"max_tokens": 4000},
            "rollout": {
                "episode": {"type": "sessions", "history": history},
                "vllm": {"extra": extra, "max_model_len": 8000},
            },
        }
        self.config = parse_config(raw)
        self.tokenizer, self.policy, self.follower = tokenizer, engine, engine
        self.eos, self.vocabulary, self.context = ends_of(tokenizer), None, 100_000


class Client:
    """An agent, the gateway's matching of turns, and the store's turns."""

    def __init__(self, sampler: TurnSampler, chance: random.Random) -> None:
        self.turns: list[Turn] = []
        self._player, self._chance = sampler, chance
        self._asked: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._states: list[list[dict[str, Any]]] = []
        self._tools = chance.choice([[], TOOLS])

    async def step(self) -> None:
        chance = self._chance
        history = chance.choice(self._states[-2:]) if self._states else []
        messages: list[dict[str, Any]]
        if not history or chance.random() < 0.15:
            # Another conversation, or the rest of one after a compaction.
            messages = [{"role": "user", "content": chance.choice(["2+2", "in short: 4", "né"])}]
        else:
            messages = [dict(one) for one in history]
            if chance.random() < 0.2:
                at = chance.randrange(len(messages))
                messages[at] = {"role": messages[at]["role"], "content": "edited"}
            messages += [
                {"role": "tool", "content": "4", "tool_call_id": one["id"]}
                for one in messages[-1].get("tool_calls") or []
            ] or [{"role": "user", "content": chance.choice(["sure?", "日"])}]
        for _ in range(chance.choice([1, 1, 2])):  # sometimes repeated
            answer = await self.ask(messages)
        self._states.append([*messages, answer])

    async def ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        asked = chat_call({"messages": messages, "tools": self._tools}, SAMPLING)
        digest = request_digest(asked)
        if digest not in self._asked:
            histories = beginnings(asked, [])
            parents = [turn.parent for turn in self.turns]
            last = [self._last.get(one) for _, one in histories]
            asked = continued(asked, histories, last, parents)
            before = [self.turns[number] for number in asked.path]
            turn, history, _, _ = await self._player.sample(asked, before, None)
            self._asked[digest] = len(self.turns)
            self._last[history] = len(self.turns)
            self.turns.append(turn)
        said = self.turns[self._asked[digest]].message
        # Sent back as clients send it.
        return {**said, "refusal": None, "content": said["content"] or ""}


@pytest.mark.parametrize("history", ["exact", "template"])
@pytest.mark.parametrize(
    "template", [CHATML, LLAMA, QWEN3, LLAMA31], ids=["chatml", "llama", "qwen3", "llama31"]
)
async def test_the_training_data_is_what_vllm_got_and_sampled(template: str, history: str) -> None:
    tokenizer, chance = tokenizer_of(template), random.Random(history)
    branches = rewritten = 0
    for _ in range(CONVERSATIONS):
        engine = Engine(tokenizer, chance)
        sampler = TurnSampler(Context(tokenizer, engine, history))  # type: ignore[arg-type]
        client = Client(sampler, chance)
        for _ in range(chance.randint(1, 6)):
            await client.step()
        prompt = shared_prompt([PlayedSession(client.turns)])
        made = completion(PlayedSession(client.turns), prompt, masks=False)
        trained: list[tuple[list[int], int]] = []
        for one in conversations(len(prompt), len(made.token_ids), made.branches):
            whole = [*prompt[: one.prompt], *made.token_ids[one.places].tolist()]
            for at in np.flatnonzero(made.loss_mask[one.places] & one.new):
                place = one.prompt + int(at)
                trained.append((whole[:place], whole[place]))
        sampled = [
            (asked + ids[:place], id) for asked, ids in engine.seen for place, id in enumerate(ids)
        ]
        assert sorted(trained) == sorted(sampled)
        assert len(engine.seen) == len(client.turns)
        branches += len(made.branches)
        rewritten += sum(
            turn.kept < len(engine.seen[turn.parent][0]) + len(engine.seen[turn.parent][1])
            for turn in client.turns
            if turn.parent >= 0
        )
    assert branches > CONVERSATIONS / 4
    # Incomplete characters change when they become text, and reasoning is gone.
    assert (rewritten > CONVERSATIONS / 4) == (history == "template")


class Judge(Engine):
    """Refuses every schema, as vLLM refuses some."""

    async def generate(self, prompt: list[int], n: int, params: Any) -> list[Sample]:
        raise RequestRefused(f"vLLM refused a request: 400 {params['structured_outputs']}")


async def test_vllms_error_about_a_schema_reaches_the_client() -> None:
    tokenizer, schema = tokenizer_of(CHATML), {"json": {"type": "nosuch"}}
    sampler = TurnSampler(Context(tokenizer, Judge(tokenizer, random.Random(0)), "exact"))  # type: ignore[arg-type]
    asked = [{"role": "user", "content": "2+2"}]
    with pytest.raises(Refused, match="nosuch") as refused:
        await sampler.sample(Call(kind="chat", messages=asked, structured=schema), [], None)
    assert refused.value.param == "response_format"


class Unreadable(Engine):
    """A policy whose parsers always raise."""

    async def message(self, parsed: Any) -> dict[str, Any]:
        raise RequestRefused("vLLM does not parse an answer: 400 unbalanced brackets")


async def test_an_answer_that_the_parser_refuses_is_recorded_as_text() -> None:
    tokenizer = tokenizer_of(CHATML)
    engine = Unreadable(tokenizer, random.Random(1))
    sampler = TurnSampler(Context(tokenizer, engine, "exact"))  # type: ignore[arg-type]
    asked = [{"role": "user", "content": "2+2"}]
    turn, *_ = await sampler.sample(Call(kind="chat", messages=asked, tools=TOOLS), [], None)
    (_, ids) = engine.seen[0]
    assert turn.sampled.tolist() == ids
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert turn.message == {"role": "assistant", "content": text}


class Stopped(Engine):
    """A policy that writes a sum and its end."""

    async def generate(self, prompt: list[int], n: int, params: Any) -> list[Sample]:
        ids = tokens(self._tokenizer, "4;5\n")
        logprobs = np.zeros(len(ids), np.float32)
        return [Sample(np.array(ids), logprobs, "stop", [Span(0, len(ids), "a:1")])]


@pytest.mark.parametrize(("stops", "text", "stop"), [(["\n", ";"], "4", ";"), (["x"], "4;5\n", "")])
async def test_a_turn_has_the_stop_text_that_ended_its_answer(
    stops: list[str], text: str, stop: str
) -> None:
    tokenizer = tokenizer_of(None)
    engine = Stopped(tokenizer, random.Random(1))
    sampler = TurnSampler(Context(tokenizer, engine, "exact"))  # type: ignore[arg-type]
    turn, *_ = await sampler.sample(Call(kind="completions", prompt="2+2", stop=stops), [], None)
    assert (turn.message, turn.stop) == ({"text": text}, stop)
    # All that was sampled is trained.
    assert turn.sampled.tolist() == tokens(tokenizer, "4;5\n")


class Eager(Engine):
    """A policy that answers with two calls."""

    async def message(self, parsed: Any) -> dict[str, Any]:
        calls = [call("c0", "add"), call("c1", "add")]
        return {"role": "assistant", "content": None, "tool_calls": calls}


@pytest.mark.parametrize(("parallel", "given"), [(True, ["c0", "c1"]), (False, ["c0"])])
async def test_a_client_without_parallel_calls_gets_the_first_call(
    parallel: bool, given: list[str]
) -> None:
    tokenizer = tokenizer_of(CHATML)
    engine = Eager(tokenizer, random.Random(1))
    sampler = TurnSampler(Context(tokenizer, engine, "exact"))  # type: ignore[arg-type]
    asked = Call(
        kind="chat",
        messages=[{"role": "user", "content": "2+2"}],
        tools=TOOLS,
        parallel_tool_calls=parallel,
    )
    turn, *_ = await sampler.sample(asked, [], None)
    assert [one["id"] for one in turn.message["tool_calls"]] == given
    # All sampled tokens are trained.
    assert turn.sampled.tolist() == engine.seen[0][1]


@pytest.mark.parametrize("history", ["exact", "template"])
async def test_a_conversation_that_has_used_up_its_tokens_ends_with_length_and_is_trained(
    history: str,
) -> None:
    tokenizer = tokenizer_of(CHATML)
    engine = Engine(tokenizer, random.Random(1))
    context = Context(tokenizer, engine, history)
    sampler = TurnSampler(context)  # type: ignore[arg-type]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "2+2"}]
    first, *_ = await sampler.sample(Call(kind="chat", messages=messages), [], None)

    # The tool's result fills the rest of the context.
    context.context = first.prompt_tokens + len(first.sampled) + 100
    messages += [first.message, {"role": "user", "content": "x" * 1000}]
    asked = Call(kind="chat", messages=messages, new=2, path=[0])
    spent, _, _, oldest = await sampler.sample(asked, [first], None)
    assert (spent.finish_reason, spent.message) == (
        "length",
        {"role": "assistant", "content": ""},
    )
    assert (spent.parent, len(spent.sampled), len(engine.seen)) == (0, 0, 1)
    assert oldest == parse_version_tag(first.versions[-1][0])

    # No turn has the long message, so the next call is refused as well.
    messages += [spent.message, {"role": "user", "content": "y"}]
    after = Call(kind="chat", messages=messages, new=4, path=[0, 1])
    last, *_ = await sampler.sample(after, [first, spent], None)
    assert (last.finish_reason, len(engine.seen)) == ("length", 1)

    whole = completion(PlayedSession([first, spent, last]), first.prompt, masks=False)
    assert whole.finish_reason == "length"
    assert whole.token_ids.tolist() == first.sampled.tolist()
    assert whole.loss_mask.all()

    # A first prompt that is too long leaves nothing to train.
    context.context = 4
    with pytest.raises(Refused, match="the prompt is too long"):
        await sampler.sample(Call(kind="chat", messages=messages[:1]), [], None)


async def test_a_call_may_have_variables_of_the_chat_template_of_its_own() -> None:
    tokenizer = tokenizer_of(
        CHATML + "{% if not (enable_thinking | default(true)) %}<think></think>{% endif %}"
    )
    engine = Engine(tokenizer, random.Random(1))
    sampler = TurnSampler(Context(tokenizer, engine, "exact"))  # type: ignore[arg-type]
    asked = [{"role": "user", "content": "2+2"}]
    off = {"enable_thinking": False}
    first = Call(kind="chat", messages=asked, variables=off)
    turn, *_ = await sampler.sample(first, [], None)
    # The next turn thinks again. The first one's ids stay.
    more = [*asked, turn.message, {"role": "user", "content": "3+3"}]
    second = Call(kind="chat", messages=more, path=[0], new=2)
    later, *_ = await sampler.sample(second, [turn], None)
    again = Call(kind="chat", messages=more, path=[0], new=2, variables=off)
    without, *_ = await sampler.sample(again, [turn], None)

    end = tokens(tokenizer, "<think></think>")
    assert turn.prompt[-len(end) :] == end
    assert without.prompt == later.prompt + end
    assert engine.seen[1][0] == [*turn.prompt, *turn.sampled.tolist(), *later.prompt]


@pytest.mark.parametrize(
    ("name", "param"),
    [("thinking", "chat_template_kwargs"), ("reasoning_effort", "reasoning_effort")],
)
async def test_a_variable_that_the_template_does_not_mention_is_refused(
    name: str, param: str
) -> None:
    tokenizer = tokenizer_of(CHATML)
    engine = Engine(tokenizer, random.Random(1))
    sampler = TurnSampler(Context(tokenizer, engine, "exact"))  # type: ignore[arg-type]
    asked = [{"role": "user", "content": "2+2"}]
    with pytest.raises(Refused, match=f"{param}: .* does not mention {name}") as refused:
        await sampler.sample(Call(kind="chat", messages=asked, variables={name: "low"}), [], None)
    assert refused.value.param == param
    assert engine.seen == []
