"""The installation's first API key: where it lies, who finds it, and how one is made.

It stands in `api-key` of the data folder, readable by its owner alone, or in HEADRACE_API_KEY.
Whoever shares the data folder with the gateway (the command line, workers) finds it there by
itself. Further keys, which can be revoked one by one, are the store's (`services.store.api_keys`).
"""

import hashlib
import ipaddress
import os
import secrets
import tempfile
from pathlib import Path

import httpx

from services.settings import Settings

FILE = "api-key"
PREFIX = "hr-"


class BadKeyFile(ValueError):
    """The file that should hold the key cannot be read, or holds none."""


def new_key() -> str:
    """A key that nobody guesses: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """What is kept of a key. The keys are random, so that a plain hash cannot be turned back."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_file(settings: Settings) -> Path:
    """Where the first key lies."""
    return settings.data.absolute() / FILE


def read_key(path: Path) -> str | None:
    """The key in `path`; None if there is no such file, or it may not be read. Raises
    BadKeyFile."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeyFile(f"the API key file {path} cannot be read: {error}") from None
    if not text or any(c.isspace() for c in text) or not text.isascii():
        raise BadKeyFile(f"the API key file {path} holds no key: one line of ASCII is wanted")
    return text


def first_key(settings: Settings) -> tuple[str, bool]:
    """The key that the gateway accepts from its first start on, and whether it was made just now.
    Several that start at once agree on one. Raises BadKeyFile, OSError."""
    if settings.api_key is not None:
        return settings.api_key.get_secret_value(), False
    path = key_file(settings)
    if (found := read_key(path)) is not None:
        return found, False
    path.parent.mkdir(parents=True, exist_ok=True)
    key = new_key()
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{FILE}-") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            found = read_key(path)
            if found is None:
                raise BadKeyFile(f"the API key file {path} may not be read") from None
            return found, False
    return key, True


def key_made(key: str, path: Path) -> str:
    """What the operator is told when the first key was made."""
    return (
        f"API key: {key}\n"
        f"It is said this once, and stands in {path}. Requests need it: the page asks for it, the "
        "command line finds it there, or takes it from HEADRACE_API_KEY."
    )


def key_for(settings: Settings, gateway_url: str | None = None) -> str | None:
    """The key to show the gateway at `gateway_url` (default: the settings'); None without one.

    The data folder's key goes to that installation's gateway and to this host alone: a `--gateway`
    elsewhere gets only what was set for it in HEADRACE_API_KEY (or HEADRACE_API_KEY_FILE).
    """
    if settings.api_key is not None:
        return settings.api_key.get_secret_value()
    given = (gateway_url or settings.gateway_url).rstrip("/")
    own = given == settings.gateway_url.rstrip("/") or is_loopback(httpx.URL(given).host)
    return read_key(key_file(settings)) if own else None


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
