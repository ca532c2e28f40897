"""The policy as an endpoint: OpenAI's API for runs that are being trained, answered by their
workers. The routes are in `services/gateway/routes/policy.py`. These calls are not trained.
"""
