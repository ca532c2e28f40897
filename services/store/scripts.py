"""Lua scripts by file name. redis-py sends the digest and reloads a script that Redis has
forgotten (restart, failover), so a call is one round trip."""

from importlib.resources import files
from typing import Any

from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from services.store.errors import Unreadable
from services.store.unreadable import is_damage

FOLDER = files("services.store") / "lua"


def script_texts() -> dict[str, str]:
    """The source of every script by its name, which no two scripts have: `lua/FOLDER/NAME.lua`,
    after `lua/common.lua`, which all scripts share."""
    common = (FOLDER / "common.lua").read_text()
    texts: dict[str, str] = {}
    for folder in (one for one in FOLDER.iterdir() if one.is_dir()):
        for file in folder.iterdir():
            name = file.name.removesuffix(".lua")
            if name in texts:
                raise ValueError(f"two Lua scripts are called {name}")
            texts[name] = f"{common}\n{file.read_text()}"
    return texts


class Scripts:
    """Each script once per client."""

    def __init__(self, redis: Any) -> None:
        # All of them now: a file that changes under a running process must not join an older one.
        self._loaded: dict[str, AsyncScript] = {
            name: redis.register_script(text) for name, text in script_texts().items()
        }

    async def run(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run the script `name`. Raises Unreadable where a key holds what the script cannot use."""
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
