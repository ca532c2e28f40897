"""The GPUs of this machine, for commands of the client."""

from services.runtime.gpus import described_gpus

__all__ = ["described_gpus"]
