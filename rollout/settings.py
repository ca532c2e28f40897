"""Settings that only the rollout process has. `services.settings` has the shared ones."""

from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from services.runtime.gpus import GPUSettings
from services.settings import FILE_BANDWIDTH


class RolloutSettings(GPUSettings):
    """Flags of `python -m rollout`, and `HEADRACE_*` variables."""

    model_config = SettingsConfigDict(cli_prog_name="python -m rollout")

    worker: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="This worker's name; default: the host's name and a random part.",
    )
    worker_class: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9_.-]{0,31})?$",
        description="What kind of machine this worker runs on, such as `spot`. "
        "`headrace workers --json` shows it; the price of a GPU-hour may differ by it.",
    )
    evaluation_only: bool = Field(
        False,
        description="Whether this worker evaluates and samples nothing to train on. It always is "
        "one of a run's `evaluation.workers`: with 1 no other evaluates while the run trains.",
    )
    serving_only: bool = Field(
        False,
        description="Whether this worker takes no work of runs, and only answers calls of finished "
        "runs and of kept checkpoints (docs/policy.md). Any other worker does so while its pool "
        "has no run.",
    )
    vllm_command: str | None = Field(
        None,
        description="What starts a vLLM server, its options excepted; default: the installed "
        "vLLM's OpenAI server.",
    )
    vllm_kv_cache_gib: int = Field(
        2, ge=1, description="On a CPU: memory for keys and values, in GiB."
    )
    vllm_start_tries: int = Field(
        2,
        ge=1,
        description="Times that vLLM may fail, with no group completed in between, before the run "
        "is failed for it.",
    )
    payload_file_bytes: int = Field(
        4 << 20,
        ge=1 << 8,
        description="Finished groups of more bytes do not go into Redis, which then has a "
        "reference of 100 bytes: they go to the data volume (through the gateway from a host "
        "without it), or to HEADRACE_PAYLOADS_URL.",
    )
    peer_url: str | None = Field(
        None,
        pattern=r"^http://[^/@?#]+:[0-9]{1,5}$",
        description="Where workers of other hosts fetch files that this host has, such as "
        "http://10.0.0.7:8004. If the address is this machine's own, the worker listens there "
        "(of several workers of a host, one does); otherwise something passes requests on to "
        "`python -m rollout.file_server`. Default: this host serves nobody.",
    )
    file_bandwidth_mbit: float | None = FILE_BANDWIDTH

    @field_validator("peer_url", mode="before")
    @classmethod
    def _url_or_none(cls, value: Any) -> Any:
        # Compose sets a variable without a value to the empty text.
        return value or None
