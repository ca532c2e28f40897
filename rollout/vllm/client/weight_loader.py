"""Makes a version of the weights live in one vLLM server: pause, update, resume. Also puts the
server to sleep; no version can be loaded then.

`load` resumes the server if its weights are whole. Otherwise the server stays paused until a later
`load` succeeds, or it is restarted.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rollout.vllm.client.connection import (
    VLLMConnection,
    VLLMUnavailable,
    broken_off,
    message_of,
    timed_out,
)
from rollout.vllm_plugin.lora_slot import AdapterSlot
from rollout.vllm_plugin.weight_file import WEIGHTS_KEPT
from services.runtime.tasks import end

CONTROL_SECONDS = 60.0
"""Time limit of a call that reads no file, and waits for the current step at most."""
SLOWEST_DISK = 50e6
"""Bytes of weights a second. A server that loads more slowly hangs."""

UpdateMode = Literal["keep", "abort", "wait"]


class LoadRefused(RuntimeError):
    """A version was not loaded. The old weights are whole, and the server continues with them."""


class WeightsUnclear(RuntimeError):
    """An update broke after it may have changed the model. The server stays paused."""


class MustRestart(RuntimeError):
    """The server must be restarted: a call hangs, or its processes may have different weights."""


@dataclass(frozen=True)
class WeightUpdate:
    """A version for the weight-transfer engine (`engine.UpdateInfo`), as files on the server's
    host."""

    path: str
    tag: str
    tensors: int
    kind: str = "full"
    bytes: int = 0
    """Size of all files."""
    deltas: tuple[str, ...] = ()
    """For kind `delta`: what to apply to the whole file at `path`, in this order."""
    whole: str = ""
    """The result as a staged file, if there is one."""
    patch: str = ""
    """A staged file with the changes from the version that vLLM serves, if there is one."""


class WeightLoader:
    """Loads weights into the server behind `connection`, and lets the server sleep."""

    def __init__(self, connection: VLLMConnection, several: bool = False) -> None:
        """`several`: whether several processes of the server hold the weights."""
        self._connection = connection
        self._several = several
        self.control_seconds = CONTROL_SECONDS
        self._loading = asyncio.Lock()
        self._loads: set[asyncio.Task[float]] = set()
        self.open = asyncio.Event()
        """Cleared while the live version changes: requests wait."""
        self.open.set()
        self.live = "none"
        """The tag of the version that was loaded last."""
        self.updating = False
        """Whether the server is paused, or about to be: no progress is expected."""
        self.sleeping = False
        """Whether the server sleeps, or is about to."""
        self._fell = self._slept = 0.0
        self._short = 0
        """Requests that no sleep may abort."""
        self._no_short = asyncio.Event()
        self._no_short.set()
        self.bytes = 0
        """Size of the server's weights, which a sleep moves."""
        # Whether the loaded weights are unknown: then only a complete load resumes the server.
        self._unclear = False
        self.proven = asyncio.Event()
        """Whether vLLM was found to serve the version. A load and a sleep clear it before the next
        token is sampled."""
        self.doubted = asyncio.Event()
        """Set at the same time, to wake the loop that scores the canary."""

    async def close(self) -> None:
        """Stop a load at once: the server is not used again."""
        await end(self._loads)

    async def prepare(self, slot: AdapterSlot | None = None) -> None:
        """Prepare a new server for updates of its weights, or of the adapter in `slot`. A server's
        first pause can take seconds, so it is done here, before there is work."""
        info = {} if slot is None else {"adapter": str(slot.folder)}
        await self._control("/init_weight_transfer_engine", {"init_info": info})
        await self._control("/pause?mode=keep&clear_cache=false")
        await self._control("/resume")

    async def load(self, update: WeightUpdate, mode: UpdateMode = "keep") -> float:
        """Make a version live. Returns seconds paused. Requests in flight continue under it
        (`keep`), are aborted and resumed under it (`abort`), or end before it (`wait`).

        Raises LoadRefused (the server continues with its old weights), WeightsUnclear (paused: load
        again, or restart it), VLLMUnavailable (it could not be paused), MustRestart. The load
        continues to its end, or until `close`, even if the caller is cancelled.
        """
        load = asyncio.create_task(self._load(update, mode))
        self._loads.add(load)
        load.add_done_callback(self._loads.discard)
        # Marks the exception as retrieved: a caller that was cancelled does not read it.
        load.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(load)

    @contextlib.asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """A block in which the server sleeps: its weights are on the host, and its requests are
        aborted, to be resumed after the block. Loads wait for the end of the block.

        Raises LoadRefused, VLLMUnavailable, MustRestart. Restart the server after each of them.
        """
        async with self._loading:
            self.open.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.control_seconds):
                    await self._no_short.wait()
            self._fell = time.monotonic()
            self.updating = self.sleeping = True
            await self._control("/sleep?level=1&mode=abort", reads=self.bytes)
            yield
            await self._control("/wake_up", reads=self.bytes)
            self._slept = self.slept
            self.updating = self.sleeping = False
            self._doubt()
            # If a load waits, requests wait for it: their tokens would have to be proven first.
            if not self._unclear and not self._loads:
                self.open.set()

    @property
    def slept(self) -> float:
        """Seconds that the server has slept, this sleep included."""
        return self._slept + (time.monotonic() - self._fell if self.sleeping else 0.0)

    async def awake_for(self, seconds: float) -> None:
        """Return when the server was awake for `seconds`."""
        began, slept = time.monotonic(), self.slept
        while (remaining := seconds + self.slept - slept - (time.monotonic() - began)) > 0:
            await asyncio.sleep(remaining)
            if self.sleeping:
                await self.open.wait()

    @contextlib.asynccontextmanager
    async def unaborted(self) -> AsyncIterator[None]:
        """A block for a short request that no sleep aborts."""
        await self.open.wait()
        self._short += 1
        self._no_short.clear()
        try:
            yield
        finally:
            self._short -= 1
            if not self._short:
                self._no_short.set()

    def _doubt(self) -> None:
        self.proven.clear()
        self.doubted.set()

    async def _load(self, update: WeightUpdate, mode: UpdateMode) -> float:
        async with self._loading:
            self.open.clear()
            try:
                return await self._replace(update, mode)
            except MustRestart:
                self._unclear = True
                raise
            finally:
                self.updating = False
                if not self._unclear:
                    self.open.set()

    async def _replace(self, update: WeightUpdate, mode: UpdateMode) -> float:
        # Changes nothing, so it is done before the pause.
        await self._start_update(update)
        if mode == "wait":
            # This takes as long as the longest completion; the token counter moves meanwhile.
            await self._control("/pause?mode=wait&clear_cache=true", unlimited=True)
        self.updating, started = True, time.monotonic()
        if mode != "wait":
            clear = "true" if mode == "abort" else "false"
            await self._control(f"/pause?mode={mode}&clear_cache={clear}")
        try:
            info = {name: value for name, value in asdict(update).items() if name != "bytes"}
            await self._control("/update_weights", {"update_info": info}, reads=update.bytes)
            await self._control("/finish_weight_update", {"weight_version": update.tag})
        except (LoadRefused, VLLMUnavailable) as error:
            if self._several:
                # vLLM reports only the first process that failed.
                raise MustRestart(
                    f"loading {update.tag}: {error}; vLLM's processes may have different weights"
                ) from error
            if self._unclear or WEIGHTS_KEPT not in str(error):
                self._unclear = True
                raise WeightsUnclear(f"loading {update.tag}: {error}") from error
            await self._control("/resume")
            raise LoadRefused(f"loading {update.tag}: {error}") from error
        self._unclear = False
        self.live = update.tag
        self._doubt()
        await self._control("/resume")
        return time.monotonic() - started

    async def _start_update(self, update: WeightUpdate) -> None:
        try:
            await self._control("/start_weight_update")
        except LoadRefused as error:
            # An earlier update did not reach its pause, or lost its connection before its end.
            if "already active" not in str(error):
                kind = WeightsUnclear if self._unclear else LoadRefused
                raise kind(f"loading {update.tag}: {error}") from error
            await self._control("/finish_weight_update")
            await self._control("/start_weight_update")

    async def _control(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        reads: int = 0,
        unlimited: bool = False,
    ) -> None:
        """Send one call of an update, during which the server reads `reads` bytes. Raises
        LoadRefused, VLLMUnavailable, and MustRestart unless `unlimited`."""
        limit = None if unlimited else self.control_seconds + reads / SLOWEST_DISK
        call = path.partition("?")[0]
        try:
            response = await self._connection.send("POST", path, json=body, timeout=limit)
        except VLLMUnavailable as error:
            if timed_out(error.__cause__):
                raise MustRestart(f"vLLM has not answered {call} for {limit:g} s") from error
            # vLLM closes the connection after an answer of 500, sometimes during the next request.
            # These calls may be repeated: at worst the second fails, and the load starts again.
            if not broken_off(error.__cause__):
                raise
            response = await self._connection.send("POST", path, json=body, timeout=limit)
        if not response.ok:
            raise LoadRefused(f"{call}: {message_of(response)}")
