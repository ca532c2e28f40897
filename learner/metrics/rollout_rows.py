"""The rows and index records of trained groups, as `services.rollouts` keeps them. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from learner.batch.samples import TrainingSample
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import GAE, GlobalWhiten, ReverseKL, SequenceValue
from services.contracts.groups.rollout import AUTO_TOKENS
from services.contracts.groups.trajectory import TRUNCATED, TrajectoryGroup
from services.contracts.weights import parse_version_tag
from services.rollouts.index_record import RECORD, Records, dataset_key, status_key
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
        places = places_in_loss(group, i, samples)
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
            "learner_logprobs": over_completion(
                [sample.learner_logprobs for sample in samples], places, length
            ),
            "entropy": over_completion([sample.entropy for sample in samples], places, length),
            "advantages": over_completion(
                [sample.token_advantages for sample in samples], places, length
            ),
            "versions": covering(spans, length),
            "branches": []
            if group.branches is None
            else [{"start": s, "after": a} for n, s, a in group.branches.tolist() if n == i],
        }


def decoded(ids: npt.NDArray[np.integer], texts: pa.BinaryArray) -> str:
    """Return the text of tokens, special tokens included."""
    known = np.asarray(ids)[np.asarray(ids) < len(texts)]
    # The bytes of a binary array lie side by side: no Python object a token.
    _, offsets, data = texts.take(pa.array(known)).buffers()
    if data is None:
        return ""
    end = int(np.frombuffer(offsets, np.int32)[len(known)])
    return data[:end].to_pybytes().decode("utf-8", "replace")


def places_in_loss(
    group: TrajectoryGroup, number: int, samples: Sequence[TrainingSample]
) -> list[npt.NDArray[np.int64]]:
    """Return the places in the completion of the tokens [k] in the loss of each conversation."""
    return [
        conversation.places[sample.loss_mask[conversation.prompt :].numpy()]
        for conversation, sample in zip(group.conversations_of(number), samples, strict=True)
    ]


def over_completion(
    values: Sequence[torch.Tensor | None], places: Sequence[npt.NDArray[np.int64]], length: int
) -> npt.NDArray[np.float32] | None:
    """Spread `values` [k] of each conversation over the `length` tokens of the completion, to
    their `places`. The other tokens get NaN. Return None if no conversation has values."""
    if all(of_one is None for of_one in values):
        return None
    spread = np.full(length, np.nan, np.float32)
    for of_one, at in zip(values, places, strict=True):
        if of_one is not None:
            spread[at] = of_one.numpy()
    return rounded(spread)


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
