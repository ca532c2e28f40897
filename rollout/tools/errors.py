"""Errors that end an episode because of its tools."""


class ToolsAway(ConnectionError):
    """A tool is unreachable, or its answer is invalid, so the policy's next input is unknown. A
    retry may succeed."""


class NoSession(ToolsAway):
    """A tool is unreachable, whatever it was asked."""
