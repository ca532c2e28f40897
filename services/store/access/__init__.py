"""API keys, and sessions of the page."""
