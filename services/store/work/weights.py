"""The published versions of a run: a stream of manifests, newest last."""

from typing import Any

from services.contracts.weights import WeightManifest, decode_manifest, encode_manifest
from services.store.errors import Unreadable
from services.store.keys import run_key
from services.store.scripts import StorePart
from services.store.unreadable import as_text, reading, report

LOOKED_AT = 64
"""Newest manifests that are searched for a readable one."""


class Weights(StorePart):
    """Calls about versions: the learner that holds the run publishes, any number of workers
    follow."""

    async def publish(self, fencing_token: int, manifest: WeightManifest, *, keep: int) -> None:
        """Register a version whose files are durable. About `keep` manifests stay listed. Raises
        Fenced."""
        text = encode_manifest(manifest)
        arguments = [fencing_token, manifest.version, manifest.lineage, text, keep]
        await self._run_fenced("publish", manifest.run, arguments)
        await self._announce(manifest.run)

    async def newest(self, run: str) -> WeightManifest | None:
        newest = await self._newest(run)
        return newest[1] if newest else None

    async def newest_after(
        self, run: str, entry: str, wait: float
    ) -> tuple[str, WeightManifest] | None:
        """Return (entry, manifest) of the newest version if it came after `entry`. Waits up to
        `wait` seconds for a version."""
        streams: dict[Any, Any] = {run_key(run, "weights"): entry}
        if not await self._redis.xread(streams, count=1, block=max(1, int(wait * 1000))):
            return None
        return await self._newest(run)

    async def _newest(self, run: str) -> tuple[str, WeightManifest] | None:
        """Return the newest entry, and the newest manifest that can be read."""
        for count in (1, LOOKED_AT):
            entries: Any = await self._redis.xrevrange(run_key(run, "weights"), count=count)
            for entry, fields in entries:
                try:
                    with reading(f"manifest {as_text(entry)} of run {run}"):
                        return entries[0][0].decode(), decode_manifest(fields[b"manifest"])
                except Unreadable as error:
                    report(f"run {run}", str(error))
        return None
