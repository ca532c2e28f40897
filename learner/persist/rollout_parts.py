"""Writes the groups that this rank has trained, off the training path (`services.rollouts`).

Rollouts are for people to read, so nothing here stops a run: a part that cannot be written is
dropped with a warning. A thread builds and writes the parts, and what waits for it is bounded.
"""

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from learner.metrics.rollout_rows import (
    TrainedGroup,
    is_kept,
    records_of,
    share_kept,
    table_of,
)
from learner.metrics.token_texts import token_texts
from learner.persist.background import Background
from learner.store.run_store import RunStore
from services.contracts.config import RLConfig
from services.rollouts.index import append, cut, index_path
from services.rollouts.parts import part_name, write
from services.rollouts.token_texts import NAME, write_token_texts
from services.runtime.logs import get_logger
from services.store import Fenced
from services.volume import DATA_RESERVE, written_beside

log = get_logger(__name__)

MOST_WAITING = 1 << 22
"""Tokens that wait for the thread, at most: 100 to 200 MB."""


@dataclass(frozen=True)
class TrainedBatch:
    """The groups of one step that are kept."""

    step: int
    groups: list[TrainedGroup]
    tokens: int


class RolloutParts:
    """Writes the kept share of the answers that one rank trains, in files on the data volume."""

    def __init__(
        self, config: RLConfig, store: RunStore, root: Path, rank: int, tokenizer: object
    ) -> None:
        """`root`: the data volume."""
        self._config, self._store, self._rank = config, store, rank
        self._folder = root / f"runs/{store.run}/rollouts"
        self._tokenizer = tokenizer
        self._texts: pa.BinaryArray | None = None
        self._waiting = 0
        """Kept tokens that are not written yet."""
        self._lock = threading.Lock()
        self._troubled = False
        """Whether the last part could not be kept."""
        self._thread: Background[TrainedBatch] = Background("rollout writer", self._make, waiting=0)

    def begin(self, step: int) -> None:
        """Go back to `step`: forget later answers. Rank 0 calls this before any rank trains."""
        self._guarded(step, lambda: cut(self._folder, step))

    def keep(self, step: int, groups: Sequence[TrainedGroup], tokens: float) -> None:
        """Keep the run's share of a trained batch. `groups`: this rank's; `tokens`: trained tokens
        over all ranks."""
        share = share_kept(self._config.rollout.keep_share, tokens)
        kept = [each for each in groups if is_kept(each.group.header.task, share)]
        batch = TrainedBatch(step, kept, sum(each.tokens for each in kept))
        if not kept:
            return
        with self._lock:
            fits = not self._waiting or self._waiting + batch.tokens <= MOST_WAITING
            self._waiting += batch.tokens if fits else 0
        if fits:
            self._thread.submit(batch)
        else:
            self._lose(step, "the disk is slower than the training")

    def sync(self) -> None:
        """Wait until everything so far is written, or lost."""
        self._thread.wait()

    def close(self) -> None:
        """Finish the work and end the thread."""
        self._thread.close()

    def _make(self, batch: TrainedBatch) -> None:
        try:
            self._guarded(batch.step, lambda: self._write(batch))
        finally:
            with self._lock:
                self._waiting -= batch.tokens

    def _write(self, batch: TrainedBatch) -> None:
        # A replaced learner that was asleep must not write over its successor's parts.
        self._store.cancelled()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._texts is None:
            self._texts = self._written_texts()
        table = table_of(batch.groups, batch.step, self._config.algorithm, self._texts)
        if shutil.disk_usage(self._folder).free < table.nbytes + DATA_RESERVE:
            raise OSError(f"less than {DATA_RESERVE >> 20} MiB of the data volume would stay free")
        with written_beside(self._folder / part_name(batch.step, self._rank)) as beside:
            write(beside, table, table.column("length").to_pylist())
        append(index_path(self._folder, self._rank), records_of(table, self._rank))
        self._troubled = False

    def _written_texts(self) -> pa.BinaryArray:
        texts = token_texts(self._tokenizer)
        if self._rank == 0:
            with written_beside(self._folder / NAME) as beside:
                write_token_texts(beside, texts)
        return pa.array(texts, pa.binary())

    def _guarded(self, step: int, work: Callable[[], None]) -> None:
        """Do `work`, and only warn if it fails."""
        try:
            work()
        except Fenced:
            # The training loop learns it from its own calls.
            log.info("another learner has the run: its rollouts are not written here", step=step)
        except Exception as error:
            log.exception("rollouts cannot be written", step=step)
            self._lose(step, str(error) or type(error).__name__)

    def _lose(self, step: int, reason: str) -> None:
        if not self._troubled:
            self._troubled = True
            self._store.warn(
                f"the rollouts of step {step} are not kept, nor those of later steps until this "
                f"ends: {reason}. The run goes on"
            )
