"""Settings of `python -m reward`: flags and `HEADRACE_*` variables of the same names."""

import os

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.settings import Settings


class RewardSettings(Settings):
    """`python -m reward`: where the reward service listens, and how much it takes on."""

    model_config = SettingsConfigDict(cli_prog_name="python -m reward")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8002, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(
        0,
        ge=0,
        le=512,
        description="Worker processes; 0 takes one for each core this process may use.",
    )
    spare_workers: int = Field(
        4,
        ge=0,
        le=512,
        description="Workers started beside those while others are stuck on slow items.",
    )
    worker_memory_mb: int = Field(
        2048, ge=64, description="Memory that one worker may add to what it starts with, in MiB."
    )
    max_queued_items: int = Field(
        16384, ge=1, description="Items accepted and not yet judged; above it, requests get 429."
    )
    body_limit: int = Field(
        64 << 20, ge=1, description="Largest request body in bytes; above it, requests get 413."
    )
    drain_timeout: float = Field(
        30.0, ge=0, description="Seconds that requests in flight get to finish after SIGTERM."
    )
    drain_delay: float = Field(
        0.0,
        ge=0,
        description="Seconds to go on answering after SIGTERM, not ready, so that a load balancer "
        "notices.",
    )
    verifiers: list[str] = Field(
        default_factory=list,
        description="Own verifiers beside installed ones, each as package.module:Class.",
    )

    @property
    def worker_count(self) -> int:
        """`workers`, with 0 resolved."""
        return self.workers or len(os.sched_getaffinity(0))
