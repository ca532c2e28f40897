"""The rollout process: leases draws, samples them with vLLM, has them scored, completes groups.

What may live here: the vLLM server's supervision and client, the weight follower, the worker
loop, episode types. Never imports learner, reward or gateway. torch and vLLM are imported by
`weight_transfer_engine` alone, which runs inside vLLM.
"""
