"""Sessions of agents: when one may be opened, how a request continues it, and its next turn."""
