"""The rows and index records of trained groups, as `services.rollouts` keeps them. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from learner.batch.samples import TrainingSample
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import GAE, GlobalWhiten, ReverseKL, SequenceValue
from services.contracts.groups.rollout import AUTO_TOKENS
from services.contracts.groups.trajectory import TRUNCATED, TrajectoryGroup
from services.contracts.weights import parse_version_tag
from services.rollouts.index import RECORD, Records, dataset_key, status_key
from services.rollouts.parts import COLUMNS, lists, rounded

GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class TrainedGroup:
    """The answers of one group that one rank has trained."""

    group: TrajectoryGroup
    samples: list[TrainingSample]
    numbers: list[int]
    """The answers' numbers within the group."""

    @property
    def tokens(self) -> int:
        """Tokens of the answers, prompts included."""
        prompt = len(self.group.prompt_tokens)
        return sum(prompt + int(self.group.lengths[i]) for i in self.numbers)


def share_kept(keep_share: float | str, tokens: float) -> float:
    """Return the share of a step's groups to keep, the same on all ranks. `tokens`: trained tokens
    of the step over all ranks."""
    if isinstance(keep_share, str):
        return min(1.0, AUTO_TOKENS / max(tokens, 1.0))
    return keep_share


def is_kept(task: int, share: float) -> bool:
    """Whether the group of `task` is kept. Spreads a share evenly over consecutive tasks, and
    agrees on all ranks that train answers of the group."""
    return share >= 1 or (task * GOLDEN) % 1 < share


def table_of(
    trained: Sequence[TrainedGroup], step: int, algorithm: Algorithm, texts: pa.BinaryArray
) -> pa.Table:
    """Return the rows of the answers that one rank trained in `step`. `texts`: bytes of each
    token."""
    # For these estimators `TrainingSample.advantage` holds the reward.
    keeps_reward = isinstance(algorithm.advantage, GlobalWhiten | GAE | SequenceValue | ReverseKL)
    rows = [row for each in trained for row in _rows(each, step, keeps_reward, texts)]
    columns = []
    for field in COLUMNS:
        values = [row[field.name] for row in rows]
        is_numbers = pa.types.is_list(field.type) and not pa.types.is_struct(field.type.value_type)
        columns.append(lists(values, field.type) if is_numbers else pa.array(values, field.type))
    return pa.table(columns, schema=COLUMNS)


def records_of(table: pa.Table, rank: int) -> Records:
    """Return the index records of a part that `rank` has written."""
    records = np.zeros(len(table), RECORD)
    for name in ("group", "row", "step", "sample", "trained"):
        records[name] = table.column(name).to_numpy()
    records["reward"] = table.column("reward").to_numpy(zero_copy_only=False).astype(np.float64)
    records["tokens"] = table.column("length").to_numpy()
    records["place"] = np.arange(len(table))
    records["rank"] = rank
    records["dataset"] = [dataset_key(name) for name in table.column("dataset").to_pylist()]
    records["status"] = [status_key(status) for status in table.column("status").to_pylist()]
    records["truncated"] = [
        reason in TRUNCATED for reason in table.column("finish_reason").to_pylist()
    ]
    return records


def _rows(
    trained: TrainedGroup, step: int, keeps_reward: bool, texts: pa.BinaryArray
) -> Iterable[dict[str, Any]]:
    group, header = trained.group, trained.group.header
    shared = {
        "step": step,
        "group": header.task,
        "row": header.row,
        "dataset": header.dataset,
        "own": header.own,
        "reference": header.reference,
        "prompt": decoded(group.prompt_tokens, texts),
        "prompt_token_ids": group.prompt_tokens,
        "worker": header.worker,
        "generated_at": header.generated_at,
    }
    versions = [parse_version_tag(tag)[1] for tag in header.tags]
    ends = group.lengths.cumsum()
    for i in trained.numbers:
        length = int(group.lengths[i])
        piece = slice(int(ends[i]) - length, int(ends[i]))
        samples = [sample for sample in trained.samples if sample.number == i]
        trains = any(sample.trains for sample in samples)
        spans = [(s, e, versions[tag]) for n, s, e, tag in group.spans.tolist() if n == i]
        yield shared | {
            "sample": i,
            "completion": decoded(group.tokens[piece], texts),
            "reward": header.rewards[i],
            "components": json.dumps({name: of[i] for name, of in header.components.items()}),
            "reasons": json.dumps(header.reasons[i] if header.reasons else {}),
            "advantage": samples[0].advantage if trains and not keeps_reward else None,
            "status": header.statuses[i],
            "finish_reason": header.finish_reasons[i],
            "trained": trains,
            "length": length,
            "turns": None if group.turns is None else int(group.turns[i]),
            "token_ids": group.tokens[piece],
            "sampler_logprobs": _sampled(group.logprobs[piece], spans),
            **{
                column: over_completion(group, i, samples, attribute)
                for column, attribute in (
                    ("learner_logprobs", "learner_logprobs"),
                    ("entropy", "entropy"),
                    ("advantages", "token_advantages"),
                )
            },
            "versions": covering(spans, length),
            "branches": []
            if group.branches is None
            else [{"start": s, "after": a} for n, s, a in group.branches.tolist() if n == i],
        }


def decoded(ids: npt.NDArray[np.integer], texts: pa.BinaryArray) -> str:
    """Return the text of tokens, special tokens included."""
    known = np.asarray(ids)[np.asarray(ids) < len(texts)]
    parts = texts.take(pa.array(known))
    return b"".join(parts.to_pylist()).decode("utf-8", "replace")


def over_completion(
    group: TrajectoryGroup, number: int, samples: Sequence[TrainingSample], attribute: str
) -> npt.NDArray[np.float32] | None:
    """Spread a value of the tokens in the loss ([k] of each conversation) over the tokens of the
    whole completion. The others get NaN. Return None if no conversation has the value."""
    values = np.full(int(group.lengths[number]), np.nan, np.float32)
    has_any = False
    for conversation, sample in zip(group.conversations_of(number), samples, strict=True):
        of_loss = getattr(sample, attribute)
        if of_loss is not None:
            in_loss = sample.loss_mask[conversation.prompt :].numpy()
            values[conversation.places[in_loss]] = of_loss.numpy()
            has_any = True
    return rounded(values) if has_any else None


def covering(spans: Sequence[tuple[int, int, int]], length: int) -> list[dict[str, Any]]:
    """Return spans of (start, end, version) with the tokens between them, which the policy did not
    sample and whose version is None."""
    covered, end = [], 0
    for start, until, version in sorted(spans):
        if start > end:
            covered.append({"start": end, "end": start, "version": None})
        covered.append({"start": start, "end": until, "version": version})
        end = until
    if end < length:
        covered.append({"start": end, "end": length, "version": None})
    return covered


def _sampled(
    logprobs: npt.NDArray[np.float32], spans: Sequence[tuple[int, int, int]]
) -> npt.NDArray[np.float32]:
    """Return the log-probabilities of sampled tokens, and NaN for the others."""
    sampled = np.full(len(logprobs), np.nan, np.float32)
    for start, end, _ in spans:
        sampled[start:end] = logprobs[start:end]
    return rounded(sampled)
