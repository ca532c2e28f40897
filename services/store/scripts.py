"""Lua scripts by file name, and the keys and arguments that each script declares.

A script's header has a line `-- KEYS run groups`: names in `keys.PATTERNS`. The script uses these
names as variables, and callers pass no keys. A `...` at the end of the line stands for further keys
that the caller passes as `more`. The names of a line `-- ARGV worker ids...` are variables too; a
last name with `...` is the list of all further arguments. redis-py sends a script's digest, and
loads a script again that Redis has forgotten (restart, failover), so a call is one round trip.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from redis.exceptions import ResponseError

from services.store.errors import Fenced, Unreadable
from services.store.keys import PATTERNS
from services.store.unreadable import is_damage, report

FOLDER = files("services.store") / "lua"
COMMON = (
    "basics",
    "tasks",
    "lapsed_leases",
    "groups",
    "partials",
    "calls",
    "sessions",
    "evaluations",
)
"""Files of `lua/common` that every script begins with. A file uses functions of earlier ones."""
_DECLARED = re.compile(r"-- (KEYS|ARGV) (.*)")


@dataclass(frozen=True)
class Script:
    """A Lua script as it is sent to Redis."""

    text: str
    keys: tuple[str, ...]
    """Names in `keys.PATTERNS`, in the order of KEYS."""
    takes_more: bool
    """Whether the caller passes further keys."""
    arguments: tuple[str, ...]
    """Names of the arguments, in the order of ARGV."""


def parsed_script(name: str, body: str, common: str) -> Script:
    """Parse a script from its file. Raises ValueError without a KEYS line, for a key that
    `keys.PATTERNS` lacks, and for two variables of one name."""
    declared: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    for line in body.splitlines():
        if match := _DECLARED.match(line):
            declared[match[1]] += match[2].split()
    words, arguments = declared["KEYS"], declared["ARGV"]
    if not words:
        raise ValueError(f"{name}.lua has no line `-- KEYS …`")
    keys = tuple(word for word in words if word != "...")
    if unknown := [key for key in keys if key not in PATTERNS]:
        raise ValueError(f"{name}.lua names the key {unknown[0]}, which is not in keys.PATTERNS")
    rest = [word.removesuffix("...") for word in arguments[-1:] if word.endswith("...")]
    names = (*arguments[: len(arguments) - len(rest)], *rest)
    if len({*keys, *names}) < len(keys) + len(names):
        raise ValueError(f"{name}.lua has two variables of one name in {[*keys, *names]}")
    variables = f"local {', '.join(keys)} = unpack(KEYS)\n" if keys else ""
    if fixed := names[: len(names) - len(rest)]:
        variables += f"local {', '.join(fixed)} = unpack(ARGV, 1, {len(fixed)})\n"
    for table in rest:
        # Lua's `unpack` takes a few thousand values.
        begin = len(fixed)
        variables += f"local {table} = {{}}\n"
        variables += f"for i = 1, #ARGV - {begin} do {table}[i] = ARGV[i + {begin}] end\n"
    return Script(f"{common}\n{variables}{body}", keys, words[-1:] == ["..."], names)


def read_scripts(folder: Traversable = FOLDER) -> dict[str, Script]:
    """Return all scripts, `lua/FOLDER/NAME.lua`, by name. Raises ValueError for a duplicate name,
    and as `parsed_script`."""
    common = "\n".join((FOLDER / "common" / f"{name}.lua").read_text() for name in COMMON)
    scripts: dict[str, Script] = {}
    for group in folder.iterdir():
        if group.name == "common" or not group.is_dir():
            continue
        for file in group.iterdir():
            name = file.name.removesuffix(".lua")
            if name in scripts:
                raise ValueError(f"two Lua scripts are called {name}")
            scripts[name] = parsed_script(name, file.read_text(), common)
    return scripts


class Scripts:
    """Runs the Lua scripts of one client."""

    def __init__(self, redis: Any) -> None:
        # All scripts now: a file that changes under a running process must not join older ones.
        self._scripts = read_scripts()
        self._loaded = {
            name: redis.register_script(script.text) for name, script in self._scripts.items()
        }

    def keys(self, name: str, more: Sequence[str], of: Mapping[str, str]) -> list[str]:
        """Return the keys of one call of `run`."""
        script = self._scripts[name]
        if more and not script.takes_more:
            raise ValueError(f"{name}.lua takes no further keys: its KEYS line has no `...`")
        return [*(PATTERNS[key].format_map(of) for key in script.keys), *more]

    async def run(
        self, name: str, arguments: Sequence[Any], *, more: Sequence[str] = (), **of: str
    ) -> Any:
        """Run the script `name`. `of`: what its keys belong to (`run="…"`, `pool="…"`); `more`:
        further keys. Raises Unreadable if a key has a value that the script cannot use."""
        keys = self.keys(name, more, of)
        try:
            return await self._loaded[name](keys=keys, args=list(arguments))
        except ResponseError as error:
            if not is_damage(error):
                raise
            raise Unreadable(f"what Redis holds under {keys[0]}", str(error)) from error


class StorePart:
    """The base of each part of the store: its access to Redis."""

    def __init__(self, redis: Any, scripts: Scripts) -> None:
        self._redis = redis  # redis-py types replies as str or bytes; ours are bytes
        self._scripts = scripts

    async def _announce(self, run: str) -> None:
        """Tell the readers of `runs/changed_runs.py` that a run has changed. Call it after the
        change."""
        try:
            await self._scripts.run("announce", [run])
        except Unreadable as error:
            report("the stream of changed runs", str(error))

    async def _run_fenced(self, name: str, run: str, arguments: Sequence[Any]) -> Any:
        """Run the script `name` of a learner. Raises Fenced if it replies -1."""
        reply = await self._scripts.run(name, arguments, run=run)
        if reply == -1:
            raise Fenced(run)
        return reply
