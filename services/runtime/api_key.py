"""The keys of an installation: making, finding and showing them.

The gateway's first key is in the file `api-key` of the data folder, the reward service's in
`reward-key`, both readable by their owner alone, or in HEADRACE_API_KEY and HEADRACE_REWARD_KEY.
Processes that share the data folder (the command line, workers) find them there. The store has
further API keys, which can be revoked one by one (`services.store.access.api_keys`).
"""

import hashlib
import hmac
import ipaddress
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx
from pydantic import SecretStr

from services.settings import SHORTEST_KEY, Settings

API_KEY = "api-key"
REWARD_KEY = "reward-key"
REDIS_PASSWORD = "redis-password"
PREFIX = "hr-"


class BadKeyFile(ValueError):
    """The key file cannot be read, or contains no valid key."""


def new_key() -> str:
    """Return a new key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """Return the digest under which a key is stored. Keys are random, so a plain hash cannot be
    reversed."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_key(path: Path) -> str | None:
    """Return the key in `path`, or None if the file is missing or may not be read. Raises
    BadKeyFile."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeyFile(f"the key file {path} cannot be read: {error}") from None
    if len(text) < SHORTEST_KEY or any(c.isspace() for c in text) or not text.isascii():
        raise BadKeyFile(
            f"the key file {path} holds no key: write one word of at least {SHORTEST_KEY} ASCII "
            "characters into it, or delete the file, and `headrace up` makes a key"
        )
    return text


def kept_key(path: Path) -> str:
    """Return the key in `path`, and make it if it is missing. Several processes that start at once
    get the same key. Raises BadKeyFile, OSError."""
    if (present := read_key(path)) is not None:
        return present
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = new_key()
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            present = read_key(path)
            if present is None:
                raise BadKeyFile(f"the key file {path} may not be read") from None
            return present
    return key


def first_key(settings: Settings) -> str:
    """Return the key that the gateway accepts from its first start on. Raises BadKeyFile,
    OSError."""
    return _named(settings.api_key) or kept_key(settings.data.absolute() / API_KEY)


def reward_service_key(settings: Settings) -> str:
    """Return the key that the reward service requires. Raises BadKeyFile, OSError."""
    return _named(settings.reward_key) or kept_key(settings.data.absolute() / REWARD_KEY)


def key_for(settings: Settings, gateway_url: str | None = None) -> str | None:
    """Return the key to show the gateway at `gateway_url` (default: the settings'), or None.

    The data folder's key is shown only to that installation's gateway and on this host: a
    `--gateway` elsewhere gets only the key in HEADRACE_API_KEY (or HEADRACE_API_KEY_FILE).
    """
    if (key := _named(settings.api_key)) is not None:
        return key
    gateway = (gateway_url or settings.gateway_url).rstrip("/")
    is_ours = gateway == settings.gateway_url.rstrip("/") or is_loopback(httpx.URL(gateway).host)
    return read_key(settings.data.absolute() / API_KEY) if is_ours else None


def key_for_rewards(settings: Settings) -> str | None:
    """Return the key to show the settings' reward service, or None. Raises BadKeyFile."""
    return _named(settings.reward_key) or read_key(settings.data.absolute() / REWARD_KEY)


def _named(key: SecretStr | None) -> str | None:
    return None if key is None else key.get_secret_value()


def key_for_peers(api_key: str | None) -> str | None:
    """Return the key with which hosts of an installation fetch files from each other, or None
    without an API key. It is derived from the shared API key, opens nothing else, and cannot be
    reversed."""
    if api_key is None:
        return None
    return PREFIX + hmac.new(api_key.encode(), b"headrace peers", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches `host`, a name or an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def authorization(key: str | None) -> dict[str, str]:
    """Return the request header that shows `key`."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def shown_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request shows in `Authorization`, or in `x-api-key` as Anthropic's
    clients do."""
    return bearer(headers.get("authorization", "")) or headers.get("x-api-key") or None


def bearer(header: str) -> str | None:
    """Return the key in the value of an Authorization header, or None."""
    scheme, _, token = header.partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
