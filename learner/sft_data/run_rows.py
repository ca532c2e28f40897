"""The tokenised rows of a supervised run: training rows in their order, and validation rows."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import numpy.typing as npt

from learner.batch.sft_rows import Example, UnusableRow, example
from learner.batch.sft_steps import Lengths, SFTSteps, StepRow, step_count
from learner.distributed import Ranks
from learner.environment import RunEnvironment
from learner.errors import RunCannotGoOn, UnusableModel
from learner.persist.disk_retry import CannotWrite, Disk, OtherRank
from learner.sft_data.dataset_tokens import DatasetTokens
from learner.slices import RankPart
from learner.state import SupervisedProgress, TrainingState
from learner.store.run_store import RunStore
from services.contracts.config import SFTConfig
from services.contracts.config.data import numbered
from services.contracts.records import DatasetRecord
from services.contracts.rows.mixture import Mixture, sources
from services.runtime.logs import get_logger
from services.volume import Volume

log = get_logger(__name__)

REPORT_SECONDS = 10.0
BLOCK_TOKENS = 1 << 18
"""Tokens of the rows that are validated at a time. They are in memory together."""


@dataclass(frozen=True)
class SupervisedRows:
    datasets: list[DatasetTokens]
    """Training datasets, then validation datasets."""
    steps: SFTSteps
    max_steps: int
    validation: list[StepRow]
    epoch_rows: int
    longest: int | None
    """Most tokens of a sequence; None: no limit."""
    warnings: list[str]
    """A warning for each dataset with skipped or cropped rows."""

    @property
    def names(self) -> list[str]:
        """Names of the datasets in metrics. A dataset that is used twice has two names."""
        return numbered([dataset.name for dataset in self.datasets])

    def examples(self, uses: list[StepRow]) -> list[Example]:
        """Return examples of the rows that have a token in the loss. The answers of a pair are
        consecutive."""
        examples = [
            # A packed row may be cut further. It is always one sequence.
            example(row, use.tokens if len(rows) == 1 else self.longest, use.component)
            for use in uses
            for rows in [self.datasets[use.component].row(use.row)]
            for row in rows
        ]
        return [each for each in examples if bool(each.loss_mask.any())]

    def validation_blocks(self) -> Iterator[list[StepRow]]:
        """Yield the validation rows in blocks, the same on every rank."""
        block: list[StepRow] = []
        tokens = 0
        for use in self.validation:
            block.append(use)
            tokens += use.tokens
            if tokens >= BLOCK_TOKENS:
                yield block
                block, tokens = [], 0
        if block:
            yield block


def open_rows(
    config: SFTConfig,
    state: TrainingState,
    environment: RunEnvironment,
) -> SupervisedRows | None:
    """Open the run's rows, and tokenise rows that no earlier run has tokenised. All ranks call this
    together. Return None if the run or this process should end. Records in `state` how many rows
    each dataset has.

    Raises UnusableRow, UnusableModel, RunCannotGoOn, DamagedFile.
    """
    ranks, store, volume = environment.ranks, environment.store, environment.volume
    records = ranks.together(lambda: _records(config, store, volume))
    supervised = state.progress.supervised or SupervisedProgress(_counted(records, ranks))
    state.progress = replace(state.progress, supervised=supervised)
    pinned = zip(records, supervised.rows, strict=True)
    records = [_first_rows(record, rows) for record, rows in pinned]
    datasets = [DatasetTokens(volume, record, config, state.loaded.tokenizer) for record in records]
    disk = Disk(
        volume.root, store if ranks.first else OtherRank(store, ranks.rank), environment.stop
    )
    part = RankPart(ranks.rank % ranks.local_size, ranks.local_size)
    interrupted = _interruption(environment)

    def build() -> bool:
        try:
            return all(dataset.build(part, disk, interrupted) for dataset in datasets)
        except CannotWrite as error:
            log.error("the run ends before its rows are tokenised", reason=str(error))
            return False

    try:
        built = ranks.together(build)
    finally:
        disk.abandon()
    if min(ranks.gather(b"1" if built else b"0")) == b"0":
        return None
    rows = ranks.together(lambda: _opened(config, state, supervised, datasets))
    if ranks.first:
        for warning in rows.warnings:
            store.warn(warning)
    return rows


def _opened(
    config: SFTConfig,
    state: TrainingState,
    supervised: SupervisedProgress,
    datasets: list[DatasetTokens],
) -> SupervisedRows:
    pairs = zip(config.data.components, datasets, strict=False)
    components = [
        component.model_copy(update={"dataset": dataset.name}) for component, dataset in pairs
    ]
    share = 0.0 if config.validation.datasets else config.validation.share
    try:
        longest = config.longest_row(state.loaded.max_length)
        lengths = _checked_lengths(config, state, datasets, longest)
        split = sources(components, supervised.rows[: len(components)], share)
        mixture = Mixture(split, config.training.seed)
        crops = config.data.overlong != "skip"
        taken = [each.taken(slice(None), longest, crops) for each in lengths]
        too_long = f"data.max_seq_len {longest} with data.overlong {config.data.overlong}: raise it"
        _refuse_unusable(datasets, mixture, taken, too_long)
        steps = SFTSteps(config, mixture, lengths, longest, supervised.position, supervised.waiting)
        total = step_count(config, mixture, lengths, longest)
    except RunCannotGoOn:
        raise
    except ValueError as error:
        raise RunCannotGoOn(str(error)) from error
    # A run whose steps are set ends before its next one.
    if config.training.max_steps is None and (trained := state.progress.step) > total:
        raise RunCannotGoOn(
            f"the run that is resumed has trained {trained:,} steps, and training.epochs "
            f"{config.training.epochs or 1:g} make {total:,}: raise training.epochs"
        )
    if not total:
        raise RunCannotGoOn(f"no row has room in {too_long}")
    validation = _validation_rows(config, mixture, taken)
    if not validation and config.validation.patience is not None:
        raise RunCannotGoOn(
            f"validation.patience {config.validation.patience} counts validations, and there is no "
            f"row to validate on (validation.share {share:g} of {sum(supervised.rows):,} rows): "
            "raise validation.share, name validation.datasets, or leave patience out"
        )
    measured = zip(datasets, lengths, taken, strict=True)
    by_name = {dataset.name: (each, used) for dataset, each, used in measured}
    warnings = [
        warning
        for name, (each, used) in by_name.items()
        for warning in _overlong(name, each, used, longest, config)
    ]
    return SupervisedRows(datasets, steps, total, validation, mixture.epoch_rows, longest, warnings)


def _checked_lengths(
    config: SFTConfig, state: TrainingState, datasets: list[DatasetTokens], longest: int | None
) -> list[Lengths]:
    """Return the lengths of each dataset's rows. Raises UnusableModel if the model lacks a token,
    and UnusableRow for a row that is too long with `data.overlong` refuse."""
    known = state.loaded.model.get_input_embeddings().num_embeddings
    checked: list[Lengths] = []
    for dataset in datasets:
        lengths, largest = dataset.lengths()
        if largest >= known:
            raise UnusableModel(
                f"the tokenizer makes token {largest} of {dataset.name}, and the model knows "
                f"{known} tokens: they do not belong together"
            )
        if config.data.overlong == "refuse" and longest is not None:
            _refuse_overlong(dataset.name, lengths, longest)
        checked.append(lengths)
    return checked


def _validation_rows(
    config: SFTConfig, mixture: Mixture, taken: list[npt.NDArray[np.int32]]
) -> list[StepRow]:
    """Return the validation rows: of the datasets to validate on, else those held out of each
    training dataset. `taken`: tokens of each dataset's rows in a step."""
    named, common = config.validation.datasets, config.validation.rows
    first = len(mixture.sources) if named else 0
    limits = [dataset.rows or common for dataset in named] or [common]
    sets = []
    for number, limit in zip(range(first, len(taken)), cycle(limits), strict=False):
        rows = np.arange(len(taken[number])) if named else mixture.held_out(number)
        if limit is not None and len(rows) > limit:
            # Evenly spaced.
            rows = rows[np.arange(limit) * len(rows) // limit]
        pairs = zip(rows.tolist(), taken[number][rows].tolist(), strict=True)
        sets.append([StepRow(number, row, tokens) for row, tokens in pairs if tokens])
    return _within(sets, config.validation.tokens)


def _refuse_overlong(name: str, lengths: Lengths, longest: int) -> None:
    over = np.flatnonzero((lengths.tokens if lengths.longer is None else lengths.longer) > longest)
    if len(over):
        row, others = int(over[0]), len(over) - 1
        more = f", and {others} more are too long" if others else ""
        raise UnusableRow(
            f"in {name}, dataset row {row} has {lengths.longest(row)} tokens, and the longest row "
            f"may have {longest} (data.max_seq_len, or the model's positions){more}: set "
            "data.overlong to crop or skip, or raise the limit"
        )


def _overlong(
    name: str,
    lengths: Lengths,
    taken: npt.NDArray[np.int32],
    longest: int | None,
    config: SFTConfig,
) -> list[str]:
    """Return warnings for the rows of a dataset that `data.overlong` skips or crops."""
    if longest is None:
        return []
    left_out, cut = int((taken == 0).sum()), int(((taken > 0) & (taken < lengths.tokens)).sum())
    key = "the model's positions" if config.data.max_seq_len is None else "data.max_seq_len"
    setting, limit = f"data.overlong {config.data.overlong}", f"{longest:,} tokens ({key})"
    why = "are longer" if config.data.overlong == "skip" else "begin their answers later"
    warnings = []
    if left_out:
        warnings.append(
            f"{left_out:,} of {len(taken):,} rows of {name} are left out ({setting}): a row may "
            f"have {limit}, and these {why}"
        )
    if cut:
        warnings.append(
            f"{cut:,} of {len(taken):,} rows of {name} lose their end ({setting}): a row may have "
            f"{limit}"
        )
    return warnings


def _refuse_unusable(
    datasets: list[DatasetTokens],
    mixture: Mixture,
    taken: list[npt.NDArray[np.int32]],
    too_long: str,
) -> None:
    """Raise RunCannotGoOn if no row of a dataset can be trained. With `max_steps` the order has no
    end, and a run without usable rows would search forever."""
    none = []
    for number in range(len(mixture.sources)):
        usable = taken[number] > 0
        usable[mixture.held_out(number)] = False
        if not usable.any():
            none.append(datasets[number].name)
    if none:
        raise RunCannotGoOn(
            f"no row to train on of {', '.join(dict.fromkeys(none))} has room in {too_long}, or "
            "leave the dataset out"
        )


def _within(sets: list[list[StepRow]], tokens: int | None) -> list[StepRow]:
    """Return the rows of all `sets`, or the same share of each set so that they have about `tokens`
    tokens. Each set keeps at least one row."""
    total = sum(use.tokens for uses in sets for use in uses)
    share = 1.0 if tokens is None else min(1.0, tokens / max(total, 1))
    counts = [max(round(share * len(uses)), 1) for uses in sets]
    return [
        uses[at * len(uses) // count]
        for uses, count in zip(sets, counts, strict=True)
        for at in range(count if uses else 0)
    ]


def _records(config: SFTConfig, store: RunStore, volume: Volume) -> list[DatasetRecord]:
    """Return the training and validation datasets, with all their files on this host."""
    names = [each.dataset for each in config.data.components]
    names += [each.dataset for each in config.validation.datasets]
    # Each dataset is looked up once: a dataset that is used twice and grows in between would have
    # two splits.
    records = {name: store.dataset(name, volume).record for name in dict.fromkeys(names)}
    return [records[name] for name in names]


def _counted(records: list[DatasetRecord], ranks: Ranks) -> list[int]:
    """Return rank 0's row counts of the datasets. Another rank may have looked later."""
    message = ranks.from_first(lambda: json.dumps([record.rows for record in records]).encode())
    rows: list[int] = json.loads(message)
    return rows


def _first_rows(record: DatasetRecord, rows: int) -> DatasetRecord:
    """Return `record` as it was when it had `rows` rows. A dataset grows by whole segments."""
    segments, left = [], rows
    for segment in record.segments:
        if left:
            segments.append(segment)
            left -= segment.rows
    if left:
        raise RunCannotGoOn(
            f"dataset {record.name} had {rows} rows when the run began, and these are not there "
            "any more: submit the run anew"
        )
    return record.model_copy(update={"rows": rows, "segments": segments})


def _interruption(environment: RunEnvironment) -> Callable[[int, int], bool]:
    """Return a function that says whether to end. It is called before each token file with the
    number of finished rows. Meanwhile rank 0 reports the progress."""
    store, reported = environment.store, time.monotonic()

    def interrupted(done: int, rows: int) -> bool:
        nonlocal reported
        if environment.ranks.first and time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            store.set_state("starting", f"rows are tokenised: {done:,} of {rows:,} of a dataset")
        over, *_ = store.call(store.runs.standing)
        return environment.stop.is_set() or over

    return interrupted
