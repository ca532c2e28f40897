"""The rollout process: leases tasks, samples them with vLLM, has them scored, completes groups.

`supervisor` goes from run to run, `worker` works on one run. They import `work`, which imports
`rewards`, `episodes` and `vllm`; imports never point the other way. Never imports learner, reward
or the gateway; only `vllm_plugin.engine`, which runs inside vLLM, imports torch and vLLM.
"""
