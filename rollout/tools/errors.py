"""What ends an episode that waits for a tool."""


class ToolsAway(ConnectionError):
    """A tool cannot be reached, or does not answer as it should: nobody can say what the policy
    would have read. A later try may succeed."""


class NoSession(ToolsAway):
    """A tool cannot be reached at all, whatever the policy has asked it for."""
