"""Where Redis is, from one URL: a server, a Unix socket, Sentinels that know the master, a cluster.

    redis://[user:password@]host[:port][/db]         one server
    unix:///path/to/redis.sock[?db=0&password=…]     one server, by a socket
    redis+sentinel://[user:password@]host[:port],…/service[/db]
    redis+cluster://[user:password@]host[:port],…

`rediss` in place of `redis` is TLS. Pure, and imports no Redis. No error here quotes what may be a
part of a password.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

Kind = Literal["server", "socket", "sentinel", "cluster"]

SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("socket", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
"""Scheme → (kind, TLS)."""
PORTS = {"server": 6379, "socket": 0, "sentinel": 26379, "cluster": 6379}
FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
TLS_OPTIONS = (*FILES, "ssl_cert_reqs", "ssl_check_hostname")
OPTIONS: dict[str, tuple[str, ...]] = {
    "server": ("db",),
    "socket": ("db", "username", "password"),
    "sentinel": ("sentinel_username", "sentinel_password"),
    "cluster": (),
}
UNREADABLE = (
    "has a host or a port that cannot be read; in a password the characters @ : / ? # , % are "
    "written %40 %3A %2F %3F %23 %2C %25"
)
HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class RedisAddress:
    """One URL, taken apart."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    """(host, port): the server, the Sentinels, or some nodes of the cluster."""
    path: str = ""
    """The path of the socket."""
    db: int = 0
    service: str = ""
    """The name that the Sentinels give the master."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_options: dict[str, str | bool] = field(default_factory=dict)
    """`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` (paths), `ssl_cert_reqs` (required, optional,
    none), `ssl_check_hostname`."""


def parse(url: str) -> RedisAddress:
    """`url`, taken apart. Raises ValueError saying what is wrong, without quoting secrets."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(
            f"must begin with {', '.join(f'{name}://' for name in SCHEMES)}, like "
            "redis://127.0.0.1:6379/0"
        )
    kind, tls = SCHEMES[scheme]
    # urlsplit has no special rules for redis://, so it splits by shape alone.
    parts = urlsplit(f"redis://{rest}")
    user, _, listed = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    # Check hosts before options: the text after an @ or ? in a password belongs to the password.
    if "@" in parts.query and kind != "socket":
        raise ValueError(UNREADABLE)
    hosts = () if kind == "socket" else tuple(_host(address, kind) for address in listed.split(","))
    options = _options(parts.query, kind, tls)
    place = [unquote(piece) for piece in parts.path.split("/") if piece]
    given: dict[str, str | None] = {
        name: str(options.pop(name)) if name in options else None
        for name in ("sentinel_username", "sentinel_password", "username", "password")
    }
    db = str(options.pop("db", ""))
    path = service = ""
    if kind == "socket":
        path = unquote(parts.path)
        if listed or not path.startswith("/") or path == "/":
            raise ValueError("unix:// takes the socket's whole path: unix:///run/redis.sock")
        place = []
    if kind == "sentinel":
        if not place:
            raise ValueError(
                f"{scheme}:// needs the name that the Sentinels have for the master: "
                f"{scheme}://host:26379,host:26379/mymaster"
            )
        service, *place = place
    if kind == "server" and len(hosts) > 1:
        raise ValueError(
            f"{scheme}:// takes one server; several are {scheme}+cluster:// or {scheme}+sentinel://"
        )
    if kind == "cluster" and place:
        raise ValueError(f"{scheme}:// takes no path: a cluster has one database")
    return RedisAddress(
        kind=kind,
        hosts=hosts,
        path=path,
        db=_database(place, db),
        service=service,
        username=unquote(username) or given["username"],
        password=unquote(password) or given["password"],
        sentinel_username=given["sentinel_username"],
        sentinel_password=given["sentinel_password"],
        tls=tls,
        tls_options=options,
    )


def with_password(url: str, password: str) -> str:
    """Return `url` with this password, which replaces any password in `url`. Raises ValueError as
    `parse` does."""
    parse(url)
    scheme, _, rest = url.partition("://")
    named, _, query = rest.partition("?")
    user, _, place = named.rpartition("@")
    others = [
        option for option in query.split("&") if option and not option.startswith("password=")
    ]
    options = f"?{'&'.join(others)}" if others else ""
    return f"{scheme}://{user.partition(':')[0]}:{quote(password, safe='')}@{place}{options}"


def _host(text: str, kind: Kind) -> tuple[str, int]:
    match = HOST.fullmatch(text)
    if match is None or not 0 < int(match["port"] or PORTS[kind]) < 65536:
        raise ValueError(UNREADABLE)
    return match["host"].strip("[]"), int(match["port"] or PORTS[kind])


def _database(place: list[str], option: str) -> int:
    given = [*place, *([option] if option else [])]
    if not given:
        return 0
    if len(given) > 1 or not (given[0].isascii() and given[0].isdigit()):
        raise ValueError("has a database that is not one number: redis://host:6379/0")
    return int(given[0])


def _options(query: str, kind: Kind, tls: bool) -> dict[str, str | bool]:
    """The options after `?`, checked; files must be there."""
    known = (*OPTIONS[kind], *(TLS_OPTIONS if tls else ()))
    options: dict[str, str | bool] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if not name.isidentifier():
            raise ValueError("has options that cannot be read: ?name=value&name=value")
        if name not in known:
            listed = ", ".join(known) or "none"
            hint = " (TLS is rediss)" if name in TLS_OPTIONS else ""
            raise ValueError(f"has the option {name!r}, which is not known here{hint}: {listed}")
        if name in FILES and not Path(value).is_file():
            raise ValueError(f"{name}: there is no file {value}")
        if name == "ssl_cert_reqs" and value not in ("required", "optional", "none"):
            raise ValueError("ssl_cert_reqs is one of required, optional, none")
        if name == "ssl_check_hostname":
            if value not in ("true", "false"):
                raise ValueError("ssl_check_hostname is true or false")
            options[name] = value == "true"
            continue
        options[name] = value
    return options
