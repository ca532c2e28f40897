"""Silences warnings of libraries that tell users nothing. Imports only the standard library, so it
can come first."""

import logging


def quiet_torchao() -> None:
    """Silence torchao. Call this before transformers is imported, which imports torchao if it is
    installed: torchao warns of missing kernels for other GPUs and Python versions, and of its enums
    under torch 2.13, before any log is configured."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
