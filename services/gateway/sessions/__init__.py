"""Sessions of agents over the OpenAI API: requests checked, answers written and waited for.

No route is here, and nothing of how a worker samples.
"""
