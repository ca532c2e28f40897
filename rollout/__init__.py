"""The rollout process: leases tasks, samples them with vLLM, gets them scored, completes groups.

`worker_supervisor` goes from run to run; `run_worker` works on one run. They import `work`, which
imports `rewards`, `episodes`, `vllm` and `text`. No import points the other way. The package never
imports the learner, the reward service or the gateway. Only `vllm_plugin`, which runs inside vLLM,
imports torch and vLLM.
"""
