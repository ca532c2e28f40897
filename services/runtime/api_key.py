"""The keys of an installation: where they lie, who finds them, and how one is made.

The gateway's first key stands in `api-key` of the data folder, the reward service's in
`reward-key`, both readable by their owner alone, or in HEADRACE_API_KEY and HEADRACE_REWARD_KEY.
Whoever shares the data folder (the command line, workers) finds them there. Further API keys, which
can be revoked one by one, are the store's (`services.store.access.api_keys`).
"""

import hashlib
import hmac
import ipaddress
import os
import secrets
import tempfile
from pathlib import Path

import httpx

from services.settings import SHORTEST_KEY, Settings

API_KEY = "api-key"
REWARD_KEY = "reward-key"
REDIS_PASSWORD = "redis-password"
PREFIX = "hr-"


class BadKeyFile(ValueError):
    """The file that should hold the key cannot be read, or holds none."""


def new_key() -> str:
    """A key that nobody guesses: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """What is kept of a key. The keys are random, so that a plain hash cannot be turned back."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_key(path: Path) -> str | None:
    """The key in `path`; None if there is no such file, or it may not be read. Raises
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
    """The key in `path`, made where there is none. Several processes that start at once agree on
    one. Raises BadKeyFile, OSError."""
    if (found := read_key(path)) is not None:
        return found
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = new_key()
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            found = read_key(path)
            if found is None:
                raise BadKeyFile(f"the key file {path} may not be read") from None
            return found
    return key


def first_key(settings: Settings) -> str:
    """The key that the gateway accepts from its first start on. Raises BadKeyFile, OSError."""
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    return kept_key(settings.data.absolute() / API_KEY)


def reward_service_key(settings: Settings) -> str:
    """The key that the reward service asks for. Raises BadKeyFile, OSError."""
    if settings.reward_key is not None:
        return settings.reward_key.get_secret_value()
    return kept_key(settings.data.absolute() / REWARD_KEY)


def key_for(settings: Settings, gateway_url: str | None = None) -> str | None:
    """The key to show the gateway at `gateway_url` (default: the settings'); None without one.

    The data folder's key goes to that installation's gateway and to this host alone: a `--gateway`
    elsewhere gets only what was set for it in HEADRACE_API_KEY (or HEADRACE_API_KEY_FILE).
    """
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    given = (gateway_url or settings.gateway_url).rstrip("/")
    own = given == settings.gateway_url.rstrip("/") or is_loopback(httpx.URL(given).host)
    return read_key(settings.data.absolute() / API_KEY) if own else None


def key_for_rewards(settings: Settings) -> str | None:
    """The key to show the reward service of the settings; None without one. Raises BadKeyFile."""
    if settings.reward_key is not None:
        return settings.reward_key.get_secret_value()
    return read_key(settings.data.absolute() / REWARD_KEY)


def key_for_peers(api_key: str | None) -> str | None:
    """The key with which hosts of an installation fetch files from each other, from the API key
    that they share; None without one. It opens nothing else, and nobody gets the API key from
    it."""
    if api_key is None:
        return None
    return PREFIX + hmac.new(api_key.encode(), b"headrace peers", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, a name or an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def authorization(key: str | None) -> dict[str, str]:
    """The request header that shows `key`."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def bearer(header: str) -> str | None:
    """The key in the value of an Authorization header."""
    scheme, _, token = header.partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
