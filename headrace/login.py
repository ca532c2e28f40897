"""Find the gateway's address and the API key, where the command line finds them."""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

import httpx

from headrace.errors import HeadraceError

USUAL = "http://127.0.0.1:8000"
API_KEY = "api-key"
"""The file of the data folder that has the gateway's first key."""


def address(url: str | None, variables: Mapping[str, str] = os.environ) -> str:
    """Return the gateway's address: `url`, else HEADRACE_GATEWAY_URL of `variables`."""
    given = (url or variables.get("HEADRACE_GATEWAY_URL") or USUAL).strip().rstrip("/")
    return given if "://" in given else f"http://{given}"


def data_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Return the data folder of an installation on this machine: HEADRACE_DATA."""
    return Path(variables.get("HEADRACE_DATA") or "headrace-data")


def api_key(url: str, variables: Mapping[str, str] = os.environ) -> str | None:
    """Return the key to show the gateway at `url`: HEADRACE_API_KEY, else the content of the file
    HEADRACE_API_KEY_FILE, else the key of the data folder (HEADRACE_DATA). The data folder's key
    is shown only to this machine, or to the gateway of HEADRACE_GATEWAY_URL."""
    if key := variables.get("HEADRACE_API_KEY", "").strip():
        return _word(key, "HEADRACE_API_KEY")
    if file := variables.get("HEADRACE_API_KEY_FILE"):
        return _text(Path(file))
    if not (is_local(url) or url == address(None, variables)):
        return None
    saved = data_folder(variables).absolute() / API_KEY
    return _text(saved) if saved.is_file() and os.access(saved, os.R_OK) else None


def is_local(url: str) -> bool:
    """Return whether only this machine reaches `url`."""
    host = httpx.URL(url).host
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _text(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise HeadraceError(f"the key file {file} cannot be read: {error}") from None
    return _word(text, f"the key file {file}")


def _word(key: str, place: str) -> str:
    if not key or not key.isascii() or any(c.isspace() for c in key):
        raise HeadraceError(f"{place} holds no key: it must hold one word of ASCII")
    return key
