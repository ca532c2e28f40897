"""Bodies of requests and answers of OpenAI's API, for the OpenAPI document.

`requests` checks the requests: its errors name OpenAI's options, and say why an option is refused.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["chat", "completions"]
"""Chat completions, or completions of a text."""


def example_of(body: dict[str, Any]) -> ConfigDict:
    """Return the settings of a body that takes any field, with an example."""
    return ConfigDict(extra="allow", json_schema_extra={"example": body})


class OpenBody(BaseModel):
    """A body that accepts any field. Fields are refused by name, in the format of the API."""

    model_config = ConfigDict(extra="allow")

    def given(self) -> dict[str, Any]:
        """Return only the keys that the client has sent."""
        return self.model_dump(exclude_unset=True)


class _Sampled(OpenBody):
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

    model_config = example_of({"messages": [{"role": "user", "content": "2+2?"}]})

    messages: Any = Field(None, description="The conversation so far, and new messages.")
    tools: Any = Field(None, description="Functions that the policy may call.")


class CompletionsRequest(_Sampled):
    """A request of OpenAI's completions."""

    model_config = example_of({"prompt": "2+2="})

    prompt: Any = Field(None, description="A text, or a list of token ids.")


class RewardRequest(OpenBody):
    """The reward of a session."""

    model_config = example_of({"reward": 0.5})

    reward: Any = Field(None, description="A number; null with an `error`.")
    components: Any = Field(None, description="Numbers by name; without `reward`, it is their sum.")
    error: Any = Field(None, description="Why there is no reward: the session is not trained.")


class OpenAIAnswer(BaseModel):
    """An answer as OpenAI's API gives it."""

    id: str = Field(description="Its name.")
    object: str = Field(description="`chat.completion` or `text_completion`.")
    created: int = Field(description="Unix time.")
    model: str = Field(description="The run.")
    choices: list[dict[str, Any]] = Field(description="One.")
    usage: dict[str, int] = Field(description="Tokens of prompt and answer.")


class OpenAIModels(BaseModel):
    """The models of a session."""

    object: str = Field(description="`list`.")
    data: list[dict[str, Any]] = Field(description="One: the run's policy.")

    @classmethod
    def named(cls, names: dict[str, int]) -> "OpenAIModels":
        """Models by name, each with its creation in Unix seconds."""
        fields = {"object": "model", "owned_by": "headrace"}
        models = [{"id": name, "created": at} | fields for name, at in names.items()]
        return cls(object="list", data=models)
