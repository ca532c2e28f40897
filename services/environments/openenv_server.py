"""Plays OpenEnv servers, through the client of the library `openenv`.

The server's schema decides how an answer becomes an action. A server that offers tools gets tool
calls. An action with a single required field gets the answer's text in that field. Any other action
is the JSON object of the answer.
"""

import json
from collections.abc import Mapping
from typing import Any

from services.environments.game import GameStep, played, text_of, user_messages
from services.environments.playing import EnvironmentFailed, Message, PlayedEpisode, require
from services.environments.policy import Policy
from services.environments.stepped import MOST_BYTES, ServerEnvironment, answer_of

LONGEST_STEP = 3600.0
"""Seconds; the time limit of the session is shorter."""
BASE_FIELDS = ("done", "reward", "metadata")
TOOL_ACTIONS = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of the schemas of servers that offer tools."""


class OpenEnvEnvironment(ServerEnvironment):
    """Plays the episodes of one OpenEnv server."""

    def __init__(self, url: str, turns: int) -> None:
        """Raises NoEnvironment if `url` is invalid, or the library is missing."""
        require("openenv")
        super().__init__(url, turns)

    async def play(self, group: Mapping[str, Any], session: Mapping[str, Any]) -> PlayedEpisode:
        from openenv import GenericEnvClient

        schema = (await answer_of(self._http, "GET", f"{self._url}/schema", None))["action"]
        client = GenericEnvClient(
            base_url=self._url,
            message_timeout_s=LONGEST_STEP,
            max_message_size_mb=MOST_BYTES / (1 << 20),
        )
        try:
            async with client:
                game = _OpenEnvGame(client, schema, group)
                await game.open()
                policy = Policy(self._http, session)
                return await played(game, policy, group["prompt"], self._turns)
        except EnvironmentFailed:
            raise
        except Exception as error:  # whatever the client raises for a server that misbehaves
            raise EnvironmentFailed(f"{self._url}: {str(error) or type(error).__name__}") from error


class _OpenEnvGame:
    def __init__(self, client: Any, schema: dict[str, Any], group: Mapping[str, Any]) -> None:
        self._client, self._schema = client, schema
        self._offers_tools = schema.get("title") in TOOL_ACTIONS
        self.tools: list[dict[str, Any]] = []
        columns = group["columns"]
        # The sessions of a group begin alike; other tasks begin differently.
        self._reset = columns.get("reset") or {"seed": columns.get("seed", group["task"])}

    async def open(self) -> None:
        """List the tools of a server that offers tools."""
        if self._offers_tools:
            listed = await self._client.step({"type": "list_tools"})
            self.tools = [_tool(tool) for tool in listed.observation["tools"]]

    async def reset(self) -> GameStep:
        return _step(await self._client.reset(**self._reset))

    async def step(self, answer: Message) -> GameStep:
        if self._offers_tools:
            return await self._call(answer)
        text = (answer.get("content") or "").strip()
        required = [field for field in self._schema.get("required", []) if field != "metadata"]
        action: Any
        if len(required) == 1:
            action = {required[0]: _typed(text, self._schema, required[0])}
        else:
            try:
                action = json.loads(text.removeprefix("```json").removesuffix("```"))
            except ValueError:
                action = None
            if not isinstance(action, dict):
                fields = ", ".join(self._schema.get("properties", {}))
                return GameStep(
                    user_messages(f"Answer with one JSON object with the fields {fields}.")
                )
        return await self._act(action)

    async def _act(self, action: dict[str, Any]) -> GameStep:
        try:
            return _step(await self._client.step(action))
        except RuntimeError as error:
            if "VALIDATION_ERROR" not in str(error):
                raise
            # An invalid action costs the policy a turn.
            return GameStep(user_messages(f"This is no valid action. {error}"))

    async def _call(self, answer: Message) -> GameStep:
        """Make the answer's tool calls. An answer without a call ends the episode."""
        calls = answer.get("tool_calls") or []
        whole = GameStep(done=not calls)
        for call in calls:
            function = call["function"]
            try:
                arguments = json.loads(function["arguments"] or "{}")
            except ValueError:
                arguments = None
            if not isinstance(arguments, dict):
                whole.messages.append(_result(call, "the arguments are no JSON object"))
                continue
            action = {"type": "call_tool", "tool_name": function["name"], "arguments": arguments}
            step = await self._act(action)
            whole.messages.append(
                _result(call, "".join(message["content"] for message in step.messages))
            )
            whole.done |= step.done
            if step.reward is not None:
                whole.reward = (whole.reward or 0) + step.reward
        return whole


def _tool(listed: Mapping[str, Any]) -> dict[str, Any]:
    parameters = listed.get("input_schema") or {"type": "object", "properties": {}}
    function = {
        "name": listed["name"],
        "description": listed.get("description") or "",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _result(call: Mapping[str, Any], text: str) -> Message:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _typed(text: str, schema: Mapping[str, Any], name: str) -> Any:
    """Return the answer in the field's type; the server refuses what does not fit."""
    if schema.get("properties", {}).get(name, {}).get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _step(result: Any) -> GameStep:
    shown = {key: value for key, value in result.observation.items() if key not in BASE_FIELDS}
    if len(shown) == 1:
        (shown,) = shown.values()
    text = text_of(shown) if shown or not result.done else ""
    return GameStep(user_messages(text), bool(result.done), result.reward)
