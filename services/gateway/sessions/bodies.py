"""Bodies of sessions' requests, as the description of the API has them. `requests` checks them: its
errors name OpenAI's options, and say why one cannot be taken.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    """Takes any field: what is refused is refused by name."""

    model_config = ConfigDict(extra="allow")

    def given(self) -> dict[str, Any]:
        """Return only the keys that the client has sent."""
        return self.model_dump(exclude_unset=True)


class _Sampled(_Open):
    model: Any = Field(None, description="Ignored: there is one.")
    stream: Any = Field(None, description="Whether the answer comes as server-sent events.")
    stop: Any = Field(None, description="A text, or up to 4, at which the answer ends.")
    seed: Any = Field(None, description="Fixes the random numbers.")
    max_tokens: Any = Field(None, description="Longest answer; also `max_completion_tokens`.")
    temperature: Any = Field(None, description="That of the run, as are `top_p` and `top_k`.")
    response_format: Any = Field(
        None, description="`json_object` or `json_schema`, in runs with `sampling.top_k`."
    )


class ChatRequest(_Sampled):
    """A request of OpenAI's chat completions."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"example": {"messages": [{"role": "user", "content": "2+2?"}]}},
    )

    messages: Any = Field(None, description="The conversation so far, and new messages.")
    tools: Any = Field(None, description="Functions that the policy may call.")


class CompletionsRequest(_Sampled):
    """A request of OpenAI's completions."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"example": {"prompt": "2+2="}})

    prompt: Any = Field(None, description="A text, or a list of token ids.")


class RewardRequest(_Open):
    """The reward of a session."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"example": {"reward": 0.5}})

    reward: Any = Field(None, description="A number; null with an `error`.")
    components: Any = Field(None, description="Numbers by name; without `reward`, it is their sum.")
    error: Any = Field(None, description="Why there is no reward: the session is not trained.")
