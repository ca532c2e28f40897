"""Code that runs inside vLLM's processes: the weight-transfer engine and patches.

vLLM imports it through an entry point. Imports nothing else of `rollout`; only `engine` imports
torch and vLLM at its top. `lora_slot` and `weight_file` are also for the processes that start vLLM.
"""
