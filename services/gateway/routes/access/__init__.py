"""Routes about API keys, and the page's login."""
