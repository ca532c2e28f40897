"""Lua scripts by file name. redis-py sends the digest and reloads a script that Redis has
forgotten (restart, failover), so a call is one round trip."""

from importlib.resources import files
from typing import Any

from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from services.store.errors import Unreadable
from services.store.unreadable import is_damage


def script_text(name: str) -> str:
    """The source of `lua/NAME.lua`, after the lines that all scripts share."""
    folder = files("services.store") / "lua"
    common = (folder / "common.lua").read_text()
    return common + "\n" + (folder / f"{name}.lua").read_text()


def script_names() -> list[str]:
    """Every script there is."""
    folder = files("services.store") / "lua"
    return sorted(f.name.removesuffix(".lua") for f in folder.iterdir() if f.name != "common.lua")


class Scripts:
    """Each script once per client."""

    def __init__(self, redis: Any) -> None:
        # All of them now: a file that changes under a running process must not join an older one.
        self._loaded: dict[str, AsyncScript] = {
            name: redis.register_script(script_text(name)) for name in script_names()
        }

    async def run(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run `lua/NAME.lua`. Raises Unreadable where a key holds what the script cannot use."""
        try:
            return await self._loaded[name](keys=keys, args=args)
        except ResponseError as error:
            if not is_damage(error):
                raise
            raise Unreadable(f"what Redis holds under {keys[0]}", str(error)) from error


class Noun:
    """What each noun of the store calls Redis with."""

    def __init__(self, redis: Any, scripts: Scripts) -> None:
        self._redis = redis  # redis-py types replies as str or bytes; ours are bytes
        self._scripts = scripts
