"""OpenAI's API as agents' sessions and the policy's endpoint speak it: bodies, checks, answers and
errors. No route is here, and nothing of how a worker samples.
"""
