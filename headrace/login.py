"""Find the gateway's address and the API key, where the command line finds them."""

import ipaddress
import os
from pathlib import Path

import httpx

from headrace.errors import HeadraceError

USUAL = "http://127.0.0.1:8000"


def address(url: str | None) -> str:
    """Return the gateway's address: `url`, else HEADRACE_GATEWAY_URL."""
    given = (url or os.environ.get("HEADRACE_GATEWAY_URL") or USUAL).rstrip("/")
    return given if "://" in given else f"http://{given}"


def api_key(url: str) -> str | None:
    """Return the key to show the gateway at `url`: HEADRACE_API_KEY, else the content of the file
    HEADRACE_API_KEY_FILE, else the key of the data folder (HEADRACE_DATA). The data folder's key
    is shown only to this machine, or to the gateway of HEADRACE_GATEWAY_URL."""
    if key := os.environ.get("HEADRACE_API_KEY"):
        return key
    if file := os.environ.get("HEADRACE_API_KEY_FILE"):
        return _text(Path(file))
    if not (is_local(url) or url == address(None)):
        return None
    saved = Path(os.environ.get("HEADRACE_DATA") or "headrace-data", "api-key")
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
    if not text or not text.isascii() or any(c.isspace() for c in text):
        raise HeadraceError(f"the key file {file} holds no key: it must hold one word")
    return text
