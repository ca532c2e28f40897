"""The tokenised rows of one dataset: one sequence for each row, or two for a pair of answers."""

from collections.abc import Callable

import numpy as np

from learner.batch.sft_rows import RowTokenizer, TokenRow
from learner.batch.sft_steps import Lengths
from learner.persist.disk_retry import Disk
from learner.sft_data.token_cache import TokenCache, cache_key
from learner.slices import RankPart
from services.contracts.config import SFTConfig
from services.contracts.config.objective.supervised import DPO
from services.contracts.records import DatasetRecord
from services.contracts.rows.preference import PAIR, Preferred
from services.volume import Volume


def _answers(config: SFTConfig) -> tuple[Preferred | None, ...]:
    return PAIR if isinstance(config.objective, DPO) else (None,)


class DatasetTokens:
    """The tokenised rows of one dataset, for a run of `config` and its `tokenizer`."""

    def __init__(
        self, volume: Volume, record: DatasetRecord, config: SFTConfig, tokenizer: object
    ) -> None:
        self.name = record.name
        """Name of the dataset."""
        self._files = [
            (
                RowTokenizer(tokenizer, config.data, answer),
                TokenCache(volume, record, cache_key(tokenizer, config.data, answer)),
            )
            for answer in _answers(config)
        ]

    def build(self, part: RankPart, disk: Disk, interrupted: Callable[[int, int], bool]) -> bool:
        """Build the missing files. See `TokenCache.build`."""
        return all(
            cache.build(tokenizer, part, disk, interrupted) for tokenizer, cache in self._files
        )

    def lengths(self) -> tuple[Lengths, int]:
        """Return the lengths of all rows, and the largest token id. Raises FileNotFoundError before
        all files are built."""
        read = [cache.lengths() for _, cache in self._files]
        largest = max(token for _, token in read)
        if len(read) == 1:
            return read[0][0], largest
        tokens = np.stack([lengths.tokens for lengths, _ in read])
        first = np.stack([lengths.first for lengths, _ in read])
        return Lengths(tokens.sum(0, dtype=np.int32), first.max(0), tokens.max(0)), largest

    def row(self, index: int) -> list[TokenRow]:
        """Return the sequences of row `index`. For a pair, the chosen answer comes first."""
        return [cache.row(index) for _, cache in self._files]
