"""The settings of `python -m reward`: flags, and `HEADRACE_*` variables of the same names."""

import itertools
import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from reward.models.wire import ModelOptions
from reward.remote_endpoints import Endpoint, is_named_url, is_url, named
from reward.sandbox.sandbox_host import SandboxOptions
from reward.verifiers.added_verifiers import entries
from services.runtime.gpus import names_in
from services.settings import Settings


class RewardSettings(Settings):
    """`python -m reward`: the address and the limits of the reward service."""

    model_config = SettingsConfigDict(cli_prog_name="python -m reward")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8002, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    socket: Path | None = Field(
        None,
        description="Listen on this Unix socket instead, without a key: only processes of the same "
        "user can connect to it.",
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
        description="Further workers, started while others are busy with slow items.",
    )
    worker_memory_mb: int = Field(
        2048, ge=64, description="Memory that one worker may add to what it starts with, in MiB."
    )
    max_queued_items: int = Field(
        16384, ge=1, description="Items accepted and not yet scored; above it, requests get 429."
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
    verifiers: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description="Own verifiers, in addition to installed ones: package.module:Class, "
        "/path/file.py:Class, /path/file.py:function, or NAME=URL of a service that answers POST "
        "with the contract of /v1/score. With commas between them, or as a JSON list.",
    )
    verifier_uploads: bool = Field(
        False,
        description="Let admins add verifiers while the service runs (`headrace verifiers add`). "
        "Their code runs as this service's user.",
    )
    judges: list[str] = Field(
        default_factory=list,
        description="Language models that `judge` and `grader` may ask, each as NAME=URL of an "
        "OpenAI-compatible API (http://host:8000/v1).",
    )
    embeddings: str | None = Field(
        None,
        description="The embedding model for the metric `cosine` of `grader`, as NAME=URL of an "
        "OpenAI-compatible API, which is asked for the model NAME.",
    )
    reward_models: list[str] = Field(
        default_factory=list,
        description="Reward models that `model` may ask, each as NAME=PATH (a folder, or a hub "
        "name: loaded here) or NAME=URL of a vLLM server (http://host:8000).",
    )
    teachers: list[str] = Field(
        default_factory=list,
        description="Teachers that `algorithm.teacher.endpoint` of a run may name, each as "
        "NAME=URL of a vLLM server (http://host:8000).",
    )
    endpoint_keys: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Bearer tokens for those URLs, by the same names, as a JSON object.",
    )
    remote_at_once: int = Field(
        256,
        ge=1,
        description="Items that judge, model and each verifier by URL ask about at once; answers "
        "that each teacher scores at once.",
    )
    remote_batch: int = Field(
        32,
        ge=1,
        le=4096,
        description="Items in one request to a verifier by URL, at most. A request takes the items "
        "that wait; if it fails or takes half of their timeout, each is asked about alone, "
        "unless the verifier cannot be reached or answers 429 or 503.",
    )
    reward_model_device: str = Field(
        "auto", description="Where reward models are loaded: auto, cpu, cuda, cuda:1, …"
    )
    reward_gpus: str = Field(
        "",
        description="GPUs for reward models that are loaded here, by number or UUID, with commas "
        "between them: each model gets one, in turn, and sees no other. Default: those that "
        "CUDA_VISIBLE_DEVICES shows. `headrace up` sets it on a machine with several GPUs.",
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

    @field_validator("verifiers", mode="before")
    @classmethod
    def _are_listed(cls, given: Any) -> Any:
        """Accept any text: a wrong entry becomes a disabled verifier (see the registry)."""
        if not isinstance(given, str):
            return given
        try:
            listed = json.loads(given)
        except ValueError:
            return [entry.strip() for entry in given.split(",") if entry.strip()]
        return [*map(str, listed)] if isinstance(listed, list) else [given]

    @field_validator("judges", "reward_models", "teachers")
    @classmethod
    def _are_named(cls, values: list[str], info: ValidationInfo) -> list[str]:
        pairs = [named(value) for value in values]
        names = [name for name, _ in pairs]
        for name, value in pairs:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is given twice")
            if info.field_name != "reward_models" and not is_url(value):
                raise ValueError(f"{name!r} needs a URL (http:// or https://)")
        return values

    @field_validator("embeddings")
    @classmethod
    def _is_named(cls, value: str | None) -> str | None:
        if value is not None and not is_url(named(value)[1]):
            raise ValueError(f"{value!r} needs a URL (http:// or https://)")
        return value

    @model_validator(mode="after")
    def _keys_are_used(self) -> "RewardSettings":
        names = {
            value.partition("=")[0]
            for value in (
                *self.verifiers,
                *self.judges,
                *self.reward_models,
                *self.teachers,
                self.embeddings or "",
            )
        }
        for name in self.endpoint_keys:
            if name not in names:
                raise ValueError(
                    f"endpoint_keys: no judge, reward model, teacher or verifier is named {name!r}"
                )
        return self

    @property
    def worker_count(self) -> int:
        """Return `workers`, with 0 resolved to a number."""
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def sandbox(self) -> SandboxOptions:
        """Return how `code` runs programs."""
        return SandboxOptions(not self.code_without_isolation, self.code_python)

    @property
    def verifier_classes(self) -> list[str]:
        """Return the entries of `verifiers` that are not URLs, and those of added verifiers."""
        named = [value for value in self.verifiers if not is_named_url(value)]
        return named + (entries(self.data) if self.verifier_uploads else [])

    @property
    def verifier_endpoints(self) -> list[Endpoint]:
        """Return the entries of `verifiers` that are URLs."""
        return [self._endpoint(*named(value)) for value in self.verifiers if is_named_url(value)]

    @property
    def judge_endpoints(self) -> dict[str, Endpoint]:
        """Return `judges` by name."""
        return {name: self._endpoint(name, url) for name, url in map(named, self.judges)}

    @property
    def embedding_endpoint(self) -> Endpoint | None:
        """Return the endpoint of `embeddings`."""
        return None if self.embeddings is None else self._endpoint(*named(self.embeddings))

    @property
    def teacher_endpoints(self) -> dict[str, Endpoint]:
        """Return `teachers` by name."""
        return {name: self._endpoint(name, url) for name, url in map(named, self.teachers)}

    @property
    def model_places(self) -> dict[str, Endpoint | ModelOptions]:
        """Return `reward_models` by name: either the endpoint of the model, or how to load it."""
        gpus = itertools.cycle(names_in(self.reward_gpus) or [""])
        return {
            name: self._endpoint(name, place)
            if is_url(place)
            else ModelOptions(
                path=place,
                device=self.reward_model_device,
                gpu=next(gpus),
                dtype=self.reward_model_dtype,
                max_tokens=self.reward_model_max_tokens,
                batch_tokens=self.reward_model_batch_tokens,
                trust_remote_code=self.reward_model_code,
            )
            for name, place in map(named, self.reward_models)
        }

    def _endpoint(self, name: str, url: str) -> Endpoint:
        key = self.endpoint_keys.get(name, SecretStr(""))
        return Endpoint(name, url.rstrip("/"), key.get_secret_value())
