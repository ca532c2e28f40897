"""Settings of the rollout process alone, beside those all processes share."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.runtime.gpus import GPUSettings


class RolloutSettings(GPUSettings):
    """Flags of `python -m rollout`, and `HEADRACE_*` variables."""

    model_config = SettingsConfigDict(cli_prog_name="python -m rollout")

    worker: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="This worker's name; default: the host's name and a random part.",
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
