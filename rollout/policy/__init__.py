"""The policy as an endpoint: calls that anyone with an API key makes while the run trains, answered
by its workers after training's own requests. Nothing here leases, scores or trains.
"""
