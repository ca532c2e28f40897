"""A stand-in for vLLM with its HTTP surface, for tests that kill and restart things many times.

Start it as the worker would start vLLM: HEADRACE_VLLM_COMMAND="python -m tests.scripted_vllm".
Tokens are random (or from a script), one log-probability for all of them; what is real is
everything around: version spans per token, pause, resume, weight files that are read and checked,
the token counter, the context limit. Prompts are scored as the canary in the loaded file says.
Serves within a second.

HEADRACE_SCRIPTED_VLLM holds its script as JSON, the fields of `script.Script`.
"""
