"""Tools that the policy calls in `rollout.episode: tools`: MCP servers, and Python in the reward
service's sandbox.

A server's answers are hostile: bodies, schemas and results are limited before they are parsed.
Imports `rollout.rewards` and `rollout.vllm`, never `rollout.episodes`. Only `mcp_session` imports
the MCP SDK, and only runs with an MCP server import `mcp_session`.
"""


class ToolsAway(ConnectionError):
    """A tool is unreachable, or its answer is invalid, so the policy's next input is unknown. A
    retry may succeed."""


class NoSession(ToolsAway):
    """No session with the server of a tool could be opened, so no call has reached it."""
