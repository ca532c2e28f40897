"""Reward models. Each runs in a process of its own, which batches the waiting conversations.

`process` runs in the service; `__main__` and `scorer` run in the child. Only `scorer` imports torch
and transformers, so the reward service works without them. The package imports `reward.verifiers`,
and no worker.
"""

from services.runtime.quiet import quiet_torchao

quiet_torchao()
