"""An adapter that vLLM reads from its checkpoint's folder, in place of a version that is loaded."""

import asyncio

from services.contracts.weights import WeightManifest


class FixedAdapter:
    """Stands for a `WeightFollower` whose version never changes."""

    def __init__(self, manifest: WeightManifest) -> None:
        self.live = manifest
        self.files = [file.name for file in manifest.files]

    async def until_proven(self, tags: list[str]) -> None:
        """Return: each request names the adapter, and vLLM has loaded it once."""

    async def follow(self) -> None:
        """Wait for ever: no version follows."""
        await asyncio.Event().wait()
