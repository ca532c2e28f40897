"""The policy as an endpoint: calls to runs that are being trained, which are not trained."""
