"""Who may call the gateway: keys, and the sessions of the page."""
