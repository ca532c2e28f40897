"""The policy as an endpoint: calls from anyone with an API key while the run trains. Workers answer
them after training's own requests. Nothing here leases, scores or trains."""
