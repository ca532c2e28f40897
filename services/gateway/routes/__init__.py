"""The routers: each parses, calls one function, returns a model. No logic lives here."""
