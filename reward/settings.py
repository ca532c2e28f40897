"""Settings of `python -m reward`: flags and `HEADRACE_*` variables of the same names."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from reward.endpoints import Endpoint, is_url, named
from reward.models.wire import Options
from reward.sandbox.host import SandboxOptions
from services.settings import Settings


class RewardSettings(Settings):
    """`python -m reward`: where the reward service listens, and how much it takes on."""

    model_config = SettingsConfigDict(cli_prog_name="python -m reward")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8002, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    socket: Path | None = Field(
        None,
        description="Listen on this Unix socket instead, which whoever may write to it reaches.",
    )
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
        description="Own verifiers beside installed ones, each as package.module:Class, or as "
        "NAME=URL of a service that answers POST with the contract of /v1/score.",
    )
    judges: list[str] = Field(
        default_factory=list,
        description="Language models that `judge` may ask, each as NAME=URL of an "
        "OpenAI-compatible API (http://host:8000/v1).",
    )
    reward_models: list[str] = Field(
        default_factory=list,
        description="Reward models that `model` may ask, each as NAME=PATH (a folder, or a hub "
        "name: loaded here) or NAME=URL of a vLLM server (http://host:8000).",
    )
    endpoint_keys: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Bearer tokens for those URLs, by the same names, as a JSON object.",
    )
    remote_at_once: int = Field(
        256, ge=1, description="Items that judge, model and each verifier by URL ask about at once."
    )
    reward_model_device: str = Field(
        "auto", description="Where reward models are loaded: auto, cpu, cuda, cuda:1, …"
    )
    reward_model_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: bfloat16 on a GPU, float32 on the CPU."
    )
    reward_model_max_tokens: int = Field(
        4096, ge=1, description="The longest conversation; longer ones lose their beginning."
    )
    reward_model_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens of one forward pass of a reward model, padding included. Default: "
        "16,384 on a GPU, 4,096 on a CPU.",
    )
    reward_model_code: bool = Field(
        False, description="Run the Python code that comes with reward models (get_score)."
    )

    sandbox_socket: Path | None = Field(
        None,
        description="The socket of another reward service that runs programs for `code`, in place "
        "of this one.",
    )
    code_python: str = Field(
        "",
        description="The Python that runs programs for `code`, and whose packages they may import; "
        "empty takes the one that this service's environment builds on, without its packages.",
    )
    code_without_isolation: bool = Field(
        False,
        description="Run programs for `code` as ordinary processes: they can read this user's "
        "files and harm its processes. For machines that cannot isolate them (docs/sandbox.md).",
    )

    @field_validator("verifiers", "judges", "reward_models")
    @classmethod
    def _are_named(cls, values: list[str], info: ValidationInfo) -> list[str]:
        pairs = [named(value) for value in values if info.field_name != "verifiers" or "=" in value]
        names = [name for name, _ in pairs]
        for name, value in pairs:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is given twice")
            if info.field_name != "reward_models" and not is_url(value):
                raise ValueError(f"{name!r} needs a URL (http:// or https://)")
        return values

    @model_validator(mode="after")
    def _keys_are_used(self) -> "RewardSettings":
        names = {
            name for name, _ in self._pairs(*self.verifiers, *self.judges, *self.reward_models)
        }
        for name in self.endpoint_keys:
            if name not in names:
                raise ValueError(
                    f"endpoint_keys: no judge, reward model or verifier is named {name!r}"
                )
        return self

    @property
    def worker_count(self) -> int:
        """`workers`, with 0 resolved."""
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def sandbox(self) -> SandboxOptions:
        """How programs are run for `code`."""
        return SandboxOptions(not self.code_without_isolation, self.code_python)

    @property
    def verifier_classes(self) -> list[str]:
        """Those of `verifiers` that are Python classes."""
        return [value for value in self.verifiers if "=" not in value]

    @property
    def verifier_endpoints(self) -> list[Endpoint]:
        """Those of `verifiers` that are URLs."""
        return [self._endpoint(name, url) for name, url in self._pairs(*self.verifiers)]

    @property
    def judge_endpoints(self) -> dict[str, Endpoint]:
        """`judges` by name."""
        return {name: self._endpoint(name, url) for name, url in self._pairs(*self.judges)}

    @property
    def model_places(self) -> dict[str, Endpoint | Options]:
        """`reward_models` by name: where they are served, or how to load them."""
        return {
            name: self._endpoint(name, place)
            if is_url(place)
            else Options(
                path=place,
                device=self.reward_model_device,
                dtype=self.reward_model_dtype,
                max_tokens=self.reward_model_max_tokens,
                batch_tokens=self.reward_model_batch_tokens,
                trust_remote_code=self.reward_model_code,
            )
            for name, place in self._pairs(*self.reward_models)
        }

    def _pairs(self, *values: str) -> list[tuple[str, str]]:
        return [named(value) for value in values if "=" in value]

    def _endpoint(self, name: str, url: str) -> Endpoint:
        key = self.endpoint_keys.get(name, SecretStr(""))
        return Endpoint(name, url.rstrip("/"), key.get_secret_value())
