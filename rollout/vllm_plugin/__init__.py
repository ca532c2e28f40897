"""Code that runs inside vLLM's processes: the weight-transfer engine, routes and patches.

vLLM imports it through an entry point. Imports nothing else of `rollout`. Only modules that run
inside vLLM alone import torch and vLLM. The processes that start vLLM also use `lora_slot` and
`weight_file`.
"""
