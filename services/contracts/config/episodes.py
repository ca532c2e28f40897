"""How a completion is made: in one request, with a calculator or other tools, by an agent outside,
or by a class of the user's own."""

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from services.contracts.config.base import Section

GROUP = "headrace.episodes"
"""Entry points of this group are classes of episodes, by their names."""
SERVER_NAME = r"^[A-Za-z][A-Za-z0-9_.-]{0,62}$"
"""The pattern of an MCP server's name."""


class SingleTurn(Section):
    """The answer is sampled in one request."""

    type: Literal["single_turn"] = "single_turn"


class Calculator(Section):
    """The policy may call a calculator (nanochat): after `start`, an expression and `end` the
    result is inserted, between `output_start` and `output_end`, and sampling goes on. The result
    counts towards the answer's length, verifiers read it, and it is not trained. The calculator
    knows numbers, + - * / // ( ) and 'text'.count('t'); for anything else nothing is inserted."""

    type: Literal["calculator"]
    start: str = Field("<|python_start|>", min_length=1)
    """Text that begins a call."""
    end: str = Field("<|python_end|>", min_length=1)
    """Text that ends a call. Sampling stops at each one, even outside a call."""
    output_start: str = "<|output_start|>"
    """Text before the result."""
    output_end: str = "<|output_end|>"
    """Text after the result."""
    max_calls: int = Field(16, ge=1)
    """Calls per answer that get a result."""

    @model_validator(mode="after")
    def _distinct_marks(self) -> Self:
        if self.end in self.start:
            raise ValueError(
                f"start {self.start!r} contains end {self.end!r}, so no call would ever begin: "
                "choose other texts"
            )
        return self


class SideCalls(Section):
    """Calls of a session that are answered and not trained, such as a call for a conversation's
    title. A call that matches any rule here is a side call."""

    models: list[str] = []
    """Calls whose `model` is in this list are side calls. Many agents have an option for the model
    of small tasks; other calls may name any model."""
    max_tokens: int | None = Field(None, ge=1)
    """Calls that ask for at most this many tokens (`max_tokens` or `max_completion_tokens`) are
    side calls."""
    first_message: str = ""
    """Calls whose first message contains this text are side calls. With '' this rule matches no
    call."""


class Sessions(Section):
    """Agents outside Headrace lead the episodes: programs that speak the OpenAI API to the gateway,
    in a session for each completion (docs/agents.md). `sampling.max_tokens` then limits all tokens
    of each conversation of a session after its first prompt."""

    type: Literal["sessions"]
    idle_seconds: float = Field(300, ge=5, le=30 * 86_400)
    """Seconds without a call after which the sessions of a group are lost and their task is leased
    again. It replaces `rollout.lease_seconds` for sessions."""
    history: Literal["exact", "template"] = "exact"
    """The prompt of a later turn: `exact` is what was sampled and the new messages; `template` is
    what the chat template makes of all messages, as outside training. Where the template changes
    earlier answers (it drops their reasoning), the turn begins a branch. Both train what was
    sampled."""
    scored: Literal["answer", "transcript"] = "answer"
    """The text that the run's verifiers read of a session without a sent reward. `answer`: the
    session's last answer. `transcript`: the conversation that ends with that answer, from its first
    answer on. It includes the messages in between and the chat template's text around them, without
    special tokens."""
    max_turns: int = Field(256, ge=1, le=4096)
    """Turns of a session, in all its conversations. A further call gets an empty answer that ends
    with `length`, and the session is truncated."""
    side_calls: SideCalls = SideCalls()
    """Calls that are answered and not trained."""


ServerName = Annotated[str, Field(pattern=SERVER_NAME)]


class Tools(Section):
    """The policy calls tools, in several turns: those of MCP servers, and Python in the reward
    service's sandbox (docs/environments.md). Results count towards `sampling.max_tokens`, and are
    not trained. Verifiers read the last answer."""

    type: Literal["tools"]
    servers: list[ServerName] = Field([], max_length=16)
    """MCP servers that offer tools, by the names that the operator has given them
    (`HEADRACE_MCP_SERVERS`)."""
    python: bool = False
    """Whether the tool `python` runs programs of the policy, in the reward service's sandbox."""
    max_turns: int = Field(8, ge=1, le=256)
    """The most answers of an episode. An episode that still calls tools after them is truncated."""
    result_tokens: int = Field(512, ge=1, le=65536)
    """The longest result of a call, in tokens. A longer result is cut, with a note for the
    policy."""
    call_seconds: float = Field(60, gt=0, le=3600)
    """Seconds that a call may take. After them the sample is not trained. A program of the tool
    `python` is ended instead, with a note for the policy."""
    episode_seconds: float = Field(900, gt=0, le=86400)
    """Seconds that an episode may take. After them the sample is not trained."""

    @property
    def max_calls(self) -> int:
        """Results between tokens of a sample, at most."""
        return self.max_turns - 1

    @model_validator(mode="after")
    def _offers_something(self) -> Self:
        if not (self.servers or self.python):
            raise ValueError(
                "there is no tool to call: name MCP servers (servers), or set python to true"
            )
        if len({*self.servers}) < len(self.servers):
            raise ValueError(f"servers {self.servers} names one twice: name each once")
        return self


class OwnEpisode(Section):
    """A class that an installed package has as an entry point of the group `headrace.episodes`."""

    type: Literal["own"]
    name: str = Field(min_length=1)
    """The entry point's name."""
    options: dict[str, Any] = {}
    """Keyword arguments for the class."""


BUILT_IN = ("single_turn", "calculator", "tools", "sessions")


def _by_name(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return {"type": value} if value in BUILT_IN else {"type": "own", "name": value}


Episode = Annotated[
    SingleTurn | Calculator | Tools | Sessions | OwnEpisode,
    Field(discriminator="type"),
    BeforeValidator(_by_name),
]


def own_episodes() -> list[str]:
    """Names of the episode types that packages installed here offer."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def unknown_episode(name: str, installed: Iterable[str]) -> str:
    """Explain that `name` is neither a built-in type nor in `own`."""
    known = ", ".join([*BUILT_IN, *sorted(installed)])
    return (
        f"{name!r} is not installed here; there is {known}. A type of your own is an entry point "
        f"of the group {GROUP}, in the environment of the rollout workers"
    )
