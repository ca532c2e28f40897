"""MCP servers whose tools runs may use, from the operator's `HEADRACE_MCP_SERVERS`.

A run names a server, never a URL: it must not decide which hosts a worker contacts, nor learn the
keys in URLs. An unusable entry disables only its server.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr

from services.contracts.config.episodes import SERVER_NAME
from services.runtime.logs import get_logger

log = get_logger(__name__)

VARIABLE = "HEADRACE_MCP_SERVERS"
SHORTEST_KEY = 6
"""Characters. A shorter piece of a path or a query also occurs in other words."""


@dataclass(frozen=True)
class ToolServer:
    """An MCP server."""

    name: str
    url: str = field(repr=False)
    """May contain a key: never shown."""
    problem: str = ""
    """Why the server is disabled; '' if it is usable."""

    def hidden_in(self, text: str) -> str:
        """Return `text` without the URL and its parts, because any part may be a key. Only for a
        usable server."""
        spelled = sorted(_spellings(self.url), key=len, reverse=True)
        return re.sub("|".join(map(re.escape, spelled)), "***", text)


def tool_servers(setting: SecretStr | None) -> dict[str, ToolServer]:
    """Parse the setting into servers by name. Logs its problems, without values."""
    text = setting.get_secret_value().strip() if setting is not None else ""
    servers: dict[str, ToolServer] = {}
    for number, entry in enumerate(_entries(text), 1):
        name, equals, url = (part.strip() for part in entry.partition("="))
        # An invalid name may be a part of a key.
        if not (equals and re.fullmatch(SERVER_NAME, name)):
            log.warning(f"{VARIABLE}: entry {number} is no NAME=URL and is left out")
            continue
        problem = "it is named twice" if name in servers else _problem(url)
        servers[name] = ToolServer(name, url, problem)
        if problem:
            log.warning(f"{VARIABLE}: a server is disabled", server=name, problem=problem)
    return servers


def usable(servers: Mapping[str, ToolServer]) -> list[str]:
    """Return the names of the usable servers."""
    return [name for name, server in servers.items() if not server.problem]


def unknown_server(name: str, known: Collection[str], problem: str = "") -> str:
    """Return why a run cannot have the server `name`, given the `known` ones. `problem` is about
    its entry."""
    if problem:
        return f"the MCP server {name!r} cannot be used: in {VARIABLE}, {problem}"
    there = f"there is {', '.join(sorted(known))}" if known else "there is none"
    return (
        f"there is no MCP server {name!r}; {there}. The operator names them in {VARIABLE} "
        "(NAME=URL) for the gateway and the rollout workers"
    )


def _spellings(url: str) -> set[str]:
    """Return the URL and its parts, as they are, decoded, and encoded."""
    parts = urlsplit(url)
    userinfo = parts.netloc.rpartition("@")[0]
    whole = [url, parts.path if parts.path != "/" else "", f"{userinfo}@", f"?{parts.query}"]
    pieces = re.split("[/:&=;]", f"{userinfo}/{parts.path}/{parts.query}/{parts.fragment}")
    spelled = [part for part in whole if len(part) > 1]
    spelled += [piece for piece in pieces if len(piece) >= SHORTEST_KEY]
    return {form for part in spelled for form in (part, unquote(part), quote(unquote(part)))}


def _entries(text: str) -> list[str]:
    """Split NAME=URL entries, from a JSON list or separated by commas."""
    try:
        listed = json.loads(text)
    except ValueError:
        listed = text.split(",")
    entries = listed if isinstance(listed, list) else [text]
    return [str(entry) for entry in entries if str(entry).strip()]


def _problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    return "" if good else "its URL is none of the form http://HOST:PORT/PATH or https://HOST/PATH"
