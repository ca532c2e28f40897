"""The policy as an endpoint: OpenAI's API for runs that are being trained, answered by their
workers. What of it is HTTP is in `services/gateway/routes/policy.py`; nothing of it is trained.
"""
