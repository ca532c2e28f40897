"""Remembers how long vLLM took to start, by model and options. A user reads it while vLLM starts.

The workers of a host share one file in the data folder.
"""

import json
import os
from pathlib import Path

import xxhash

from services.contracts.config.vllm import VLLM
from services.runtime.logs import get_logger

FILE = "vllm-starts.json"
KEPT = 100
"""Newest models and options that the file has."""

log = get_logger(__name__)


def start_key(model: Path, options: VLLM, device: str) -> str:
    """Return what starts of one duration have in common: architecture, options, device. Weights
    do not count."""
    digest = xxhash.xxh3_64((model / "config.json").read_bytes())
    digest.update(f"{device}\0{options.model_dump_json()}".encode())
    return digest.hexdigest()


class StartTimes:
    """The file in the folder `data`."""

    def __init__(self, data: Path) -> None:
        self._file = data / FILE

    def usual(self, key: str) -> float | None:
        """Return how long the newest start with this key took, in seconds, or None."""
        seconds = self._read().get(key)
        return float(seconds) if isinstance(seconds, int | float) else None

    def add(self, key: str, seconds: float) -> None:
        """Remember a start. If the file cannot be written, a log line says so."""
        times = {name: value for name, value in self._read().items() if name != key}
        newest = [*times.items(), (key, round(seconds, 1))][-KEPT:]
        part = self._file.with_name(f".{FILE}.{os.getpid()}")
        try:
            part.write_text(json.dumps(dict(newest)))
            part.replace(self._file)
        except OSError as error:
            log.warning("the time of this start is not remembered", reason=str(error))

    def _read(self) -> dict[str, object]:
        try:
            times = json.loads(self._file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return times if isinstance(times, dict) else {}
