"""Warnings of libraries that tell users nothing. Imports nothing but the standard library, so that
it can come first."""

import logging


def quiet_torchao() -> None:
    """To be called before transformers is imported, which imports torchao where it is installed:
    that warns of kernels for GPUs and Python versions that are not there, and of what torch 2.13
    thinks of its enums, before any log is configured. Nothing of it concerns a user."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
