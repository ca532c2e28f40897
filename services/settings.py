"""Settings that all processes share. Each has one name: as a flag (`--redis-url`), as a variable of
the environment (`HEADRACE_REDIS_URL`) and in a `.env` file. Flags win over the environment. A
secret may be in a file of its own, which `HEADRACE_…_FILE` names.

Settings of one run are in its config (`services.contracts.config`), never here.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    CliApp,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from headrace.redaction import redacted
from headrace.variables import POOL_NAME, places, unread
from services.caches import place_caches
from services.contracts.redis import redis_address
from services.contracts.wrong_values import wrong_value

__all__ = ["EXIT_SETTINGS", "Settings", "complaints", "from_command_line", "redacted"]

SHORTEST_KEY = 16
"""Characters of a key in a file. A file with fewer is damaged, or its key is easily guessed."""
EXIT_SETTINGS = 2
"""Exit code of a process whose flags or variables make no sense, or whose Redis cannot be used."""


FILE_BANDWIDTH: Any = Field(
    None,
    gt=0,
    description="Most Mbit/s of files that this process sends to other hosts, to all of them "
    "together. Default: no limit.",
)
"""A limit of each process that sends files."""


class SecretFiles(PydanticBaseSettingsSource):
    """Secrets in files: `HEADRACE_API_KEY_FILE` names the file that holds the secret `api_key`.
    Raises SettingsError for a file that cannot be read or whose key is too short."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The content of the file without white space around it, or None."""
        variable = f"HEADRACE_{field_name.upper()}_FILE"
        path = os.environ.get(variable)
        if not path or "SecretStr" not in str(field.annotation):
            return None, field_name, False
        try:
            text = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise SettingsError(f"{variable}: {path} cannot be read: {reason}") from None
        if field_name in ("api_key", "reward_key") and len(text) < SHORTEST_KEY:
            raise SettingsError(
                f"{variable}: {path} holds {len(text)} characters: a key has at least "
                f"{SHORTEST_KEY}"
            )
        return text, field_name, self.field_is_complex(field)

    def __call__(self) -> dict[str, Any]:
        """All secrets that files hold, by the names of their settings."""
        values = {}
        for name, field in self.settings_cls.model_fields.items():
            text, key, is_complex = self.get_field_value(field, name)
            if text is not None:
                values[key] = self.prepare_field_value(name, field, text, is_complex)
        return values


class Settings(BaseSettings):
    """Where the parts of one installation find each other."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_", env_file=".env", extra="ignore", cli_kebab_case=True
    )

    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="Redis: redis://, rediss:// (TLS), unix://, redis+sentinel:// or "
        "redis+cluster:// (docs/operate.md has all forms). May hold a password.",
    )
    redis_password: SecretStr | None = Field(
        None, description="Put into the Redis URL, in place of one that stands there."
    )
    data: Path = Field(
        Path("headrace-data"),
        description="The data volume: datasets, weights, checkpoints, metrics. On a host without "
        "it, a cache: files come from the gateway.",
    )
    gateway_url: str = Field(
        "http://127.0.0.1:8000", description="The gateway, as other processes reach it."
    )
    reward_url: str = Field("http://127.0.0.1:8002", description="The reward service.")
    payloads_url: str | None = Field(
        None,
        pattern=r"^s3://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9._-]+)*/?$",
        description="Where groups lie that are too large for Redis, in place of the data volume: "
        "a bucket of S3 or a store like it, perhaps with a folder: s3://bucket/headrace. Nothing "
        "else may be there. Credentials are in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
        "AWS_REGION, the address of another store than Amazon's is in AWS_ENDPOINT_URL. For the "
        "gateway, the learner and rollout workers alike.",
    )
    api_key: SecretStr | None = Field(
        None,
        description="The API key: what the gateway accepts, and others show it. Default: what the "
        "file `api-key` in the data folder holds; the gateway makes it there at its first start.",
    )
    reward_key: SecretStr | None = Field(
        None,
        description="The reward service's key: what it accepts, and workers and the gateway show "
        "it. Default: what the file `reward-key` in the data folder holds; the service makes it "
        "there at its first start.",
    )
    mcp_servers: SecretStr | None = Field(
        None,
        description="MCP servers whose tools `rollout.episode.servers` of a run may name, each as "
        "NAME=URL (https://host/mcp), with commas between them or as a JSON list. URLs may hold "
        "keys. For the gateway and rollout workers alike; the gateway reads the names alone.",
    )
    pool: str = Field(
        "default",
        pattern=POOL_NAME,
        description="The learner group and its rollout workers that this process belongs to.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least that is logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, else json."
    )
    allow_unsafe_redis: bool = Field(
        False,
        description="Accept a Redis that may lose acknowledged writes (appendfsync everysec loses "
        "up to one second on a power cut; no AOF loses everything since the last snapshot).",
    )
    trust_remote_code: bool = Field(
        False,
        description="Let runs have `model.trust_remote_code` and any option in "
        "`rollout.vllm.extra`: who may submit a run may then run code on the hosts of learner and "
        "workers. Set it for the gateway, the learner and rollout workers alike.",
    )
    alive_file: Path | None = Field(
        None,
        description="A file that a rollout worker or learner writes every few seconds while it "
        "can reach Redis, for health checks of containers. A worker's has its state.",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """In order of precedence, flags before all of them."""
        return init_settings, env_settings, dotenv_settings, SecretFiles(settings_cls)

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, value: SecretStr) -> SecretStr:
        redis_address.parse(value.get_secret_value())
        return value

    @field_validator("gateway_url", "reward_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        url = value.strip()
        if not url.isprintable() or " " in url:
            raise ValueError(f"{redacted(url)[:200]!r} is not a URL like http://127.0.0.1:8000")
        return url

    @field_validator("payloads_url", mode="before")
    @classmethod
    def _url_or_none(cls, value: Any) -> Any:
        # Compose sets variables that nobody gave a value to the empty text.
        return value or None

    @field_validator("api_key", "reward_key", mode="before")
    @classmethod
    def _key_or_none(cls, value: Any) -> Any:
        # Compose sets variables that nobody gave a value to the empty text.
        if not isinstance(value, str):
            return value
        key = value.strip()
        if not key.isascii() or any(c.isspace() for c in key):
            raise ValueError("a key is one word of ASCII")
        return key or None

    @model_validator(mode="after")
    def _url_has_the_password(self) -> Self:
        if self.redis_password is not None:
            url, password = self.redis_url.get_secret_value(), self.redis_password
            self.redis_url = SecretStr(
                redis_address.with_password(url, password.get_secret_value())
            )
        return self


S = TypeVar("S", bound=Settings)


def from_command_line(kind: type[S]) -> S:
    """The settings of a process, from its flags and variables. Warn on stderr of each variable that
    nothing reads. A value that makes no sense ends the process with code 2 and says so. Caches of
    libraries are placed below the data folder."""
    for warning in unread(places()):
        sys.stderr.write(f"warning: {warning}\n")
    try:
        settings = CliApp.run(kind)
    except (ValidationError, SettingsError) as error:
        for line in complaints(error):
            sys.stderr.write(f"error: {line}\n")
        raise SystemExit(EXIT_SETTINGS) from None
    if warning := place_caches(settings.data):
        sys.stderr.write(f"warning: {warning}\n")
    return settings


def complaints(error: ValidationError | SettingsError) -> list[str]:
    """Say each problem of settings in one sentence, with flag, variable and value. A value that may
    be a secret is not shown."""
    if isinstance(error, SettingsError):
        unread = re.search(r'parsing value for field "(\w+)"', str(error))
        if unread is None:
            return [str(error)]
        return [
            f"HEADRACE_{unread[1].upper()}: is not JSON. Write a list as "
            """'["one", "two"]', and a mapping as '{"name": "value"}'"""
        ]
    kinds = [kind for kind in _kinds(Settings) if kind.__name__ == error.title]
    fields = kinds[0].model_fields if kinds else {}
    problems: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0]) if detail["loc"] else ""
        given = str(detail.get("input"))
        # An @ in a URL follows a password.
        is_secret = name not in fields or "Secret" in str(fields[name].annotation) or "@" in given
        problems.setdefault(name, []).append(wrong_value(detail, is_secret))
    return [
        f"--{name.replace('_', '-')} (HEADRACE_{name.upper()}): {', or '.join(sentences)}"
        if name
        else "; ".join(sentences)
        for name, sentences in problems.items()
    ]


def _kinds(kind: type[Settings]) -> Iterator[type[Settings]]:
    """`kind` and all classes that derive from it."""
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds(inner)
