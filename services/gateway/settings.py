"""Settings of the gateway only, in addition to the settings that all processes share."""

import socket

import httpx
from pydantic import Field, field_validator
from pydantic_settings import SettingsConfigDict

from services.contracts.config.tracking import TRACKERS
from services.contracts.prices import Prices
from services.settings import FILE_BANDWIDTH, Settings

GIB = 1 << 30


class GatewaySettings(Settings):
    """`python -m services.gateway`: the REST API and the page.

    Each flag is also an environment variable: `--redis-url` is `HEADRACE_REDIS_URL`.
    """

    model_config = SettingsConfigDict(cli_prog_name="python -m services.gateway")

    host: str = Field("127.0.0.1", description="Address to listen on. 0.0.0.0: all.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on. 0: any free one.")
    upload_limit: int = Field(
        16 * GIB,
        ge=1,
        description="Largest upload, in bytes. The files of one form may have 1 GiB; larger ones "
        "are sent in parts.",
    )
    body_limit: int = Field(
        8 << 20,
        ge=1,
        description="Largest body of `POST /v1/prompts` and of a session's call, in bytes. Other "
        "requests have 1 MiB.",
    )
    file_bandwidth_mbit: float | None = FILE_BANDWIDTH
    gpu_hour_price: str = Field(
        "",
        description="What an hour of a GPU costs, such as `2.50 USD`. Classes of workers "
        "(HEADRACE_WORKER_CLASS) and kinds of GPUs may have prices of their own: `2.50 USD,spot="
        "0.90,NVIDIA L4=0.70`. `headrace why` and reports say what 1,000 trained samples cost.",
    )
    allowed_hosts: str = Field(
        "",
        description="Names by which browsers reach the page, with commas between them. Addresses, "
        "localhost, this machine's own name and the host in HEADRACE_GATEWAY_URL are allowed "
        "anyway. Requests with an API key may use any name.",
    )
    policy_calls: int = Field(
        16,
        ge=0,
        le=32,
        description="Calls of policies (`/v1/chat/completions`, `/v1/completions`) that may be "
        "open at once. 0: none is answered.",
    )
    policy_calls_a_minute: int = Field(
        3000, ge=1, description="Calls of policies that one API key may make in a minute."
    )
    policy_max_tokens: int = Field(
        4096, ge=1, description="Most tokens that the answer to one of these calls may have."
    )
    keep_finished_checkpoints: int | None = Field(
        None,
        ge=1,
        description="Checkpoints that a finished run keeps, its current one included. Those stay "
        "besides that had the best validation, or that a run that is not over or an open "
        "chain names. Default: all that `training.keep_checkpoints` of the run has kept.",
    )
    keep_finished_seconds: int = Field(
        60, ge=1, description="How long after its end a finished run keeps everything."
    )
    keep_rollouts_days: float | None = Field(
        None,
        ge=0,
        description="Days after its end for which a run keeps its rollouts, the answers that it "
        "was trained on. Default: as long as it exists.",
    )

    trackers: str = Field(
        "tensorboard",
        description="Experiment trackers that runs may name in `tracking`, with commas between "
        "them: tensorboard, wandb, mlflow, trackio. The gateway carries metrics to them with the "
        "keys and addresses of its own environment: WANDB_API_KEY and WANDB_BASE_URL, "
        "MLFLOW_TRACKING_URI. It needs their packages (`headrace-server[track]`). Empty: none.",
    )
    reports: bool = Field(
        True,
        description="Whether every run and every chain that ends gets a report on the data volume, "
        "which takes some seconds of one core. `GET /v1/runs/RUN/report` makes one in any case.",
    )

    @field_validator("trackers")
    @classmethod
    def _are_trackers(cls, value: str) -> str:
        names = _listed(value)
        if wrong := sorted(names - {*TRACKERS}):
            raise ValueError(f"{wrong[0]!r} is no tracker: known are {', '.join(TRACKERS)}")
        return value

    @field_validator("gpu_hour_price")
    @classmethod
    def _is_price(cls, value: str) -> str:
        if value:
            Prices.parse(value)
        return value

    @property
    def allowed_trackers(self) -> frozenset[str]:
        """Trackers that runs may name."""
        return _listed(self.trackers)

    @property
    def host_names(self) -> frozenset[str]:
        """Names by which browsers reach the page, in small letters."""
        names = (socket.gethostname(), httpx.URL(self.gateway_url).host)
        listed = (*self.allowed_hosts.split(","), *names)
        return frozenset(name.strip().lower() for name in listed if name.strip())


def _listed(names: str) -> frozenset[str]:
    return frozenset(name.strip() for name in names.split(",") if name.strip())
