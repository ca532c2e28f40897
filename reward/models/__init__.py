"""Reward models: each in a process of its own, which batches the conversations that wait.

`process` runs in the service; `__main__` and `scorer` run in the child. Only `scorer` imports torch
and transformers: the reward service works without them. Imports `reward.verifiers`, and no worker.
"""

from services.runtime.quiet import quiet_torchao

quiet_torchao()
