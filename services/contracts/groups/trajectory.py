"""A trajectory group on the wire: one prompt, its samples, and all a learner needs of them.

Layout: 4 bytes little-endian length of the header, the header (msgpack), then one safetensors
blob. No pickle, no JSON numbers per token. A prompt is stored once for its group.

Per sampled token: 2 or 4 bytes of token id (2 where the vocabulary allows), 4 bytes of sampler
log-probability, 1 bit of loss mask, 4 bytes of reward if that is dense, 4 of a teacher's
log-probability if a server gave it, and its sampling mask with `sampling.top_k`; plus about 2 kB
per group. Recorded expert routing takes layers × experts per token bytes more (twice that beyond
256 experts), for the prompt once.
"""

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load as load_arrays

from services.contracts.groups.branches import Branch, Conversation, conversations
from services.contracts.groups.group_lengths import GroupLengths
from services.contracts.groups.sampling_mask import SamplingMask
from services.contracts.schema import require_schema

SCHEMA = 1

TRUNCATED = frozenset({"length", "deadline"})
"""Finish reasons of truncated completions: `sampling.max_tokens`, `rollout.straggler_deadline`."""

_TYPES = [np.dtype(name) for name in ("<f4", "<u4", "<u2", "<u1")]
"""The types of the arrays, in the order in which safetensors writes them."""

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.float32]


class GroupHeader(msgspec.Struct, kw_only=True):
    """The fields that a group has once, or once per sample."""

    run: str
    task: int
    attempt: str
    worker: str
    row: int
    """Index of the dataset row."""
    dataset: str = ""
    """The row's dataset in a mixture; '' if the run has one dataset."""
    prompt_key: str = ""
    """The key under which `running_mean` counts the prompt; '' without a key."""
    own: str | None = None
    """The client's name (or '') of a prompt that the client brought instead of that row."""
    lineage: str
    """The lineage that granted the lease."""
    tags: list[str]
    """The distinct version tags (`weights.version_tag`) that sampled tokens of this group."""
    finish_reasons: list[str]
    statuses: list[str]
    rewards: list[float | None]
    """Weighted sum over the run's verifiers; None: a verifier broke, mask this sample."""
    components: dict[str, list[float | None]] = {}
    """The reward's components before their weights, by name, and the parts that a verifier names,
    as `component/part`. None: the sample was not scored for it."""
    reasons: list[dict[str, str]] = []
    """The verifiers' reasons for each sample, by component."""
    reference: str = ""
    """The row's reference answer as text."""
    sampled_reward: float | None = None
    """Mean reward of all completions of the prompt, if `algorithm.best_of` chose some of them."""
    leased_at: float = 0.0
    generated_at: float = 0.0
    scored_at: float = 0.0
    schema: int = SCHEMA


@dataclass
class TrajectoryGroup:
    """`samples` completions of one prompt. Ragged arrays are concatenated, cut by `lengths`.

    prompt_tokens [p] · lengths [samples] · tokens, loss_mask, logprobs [sum(lengths)] ·
    spans [k, 4]: (sample, start, end, index into header.tags), end exclusive, in completion
    tokens. `loss_mask` is False on tokens the policy did not sample (tool output, forced ones);
    their `logprobs` are 0.

    With expert routing: `experts` [p + sum(routed), layers, experts per
    token] uint8 or uint16, the prompt's first, then of the first `routed` [samples] tokens of each
    completion. (The last token sampled went through no layer.) Layers without experts hold 0.
    """

    header: GroupHeader
    prompt_tokens: IntArray
    lengths: IntArray
    tokens: IntArray
    loss_mask: npt.NDArray[np.bool_]
    logprobs: FloatArray
    spans: IntArray
    token_rewards: FloatArray | None = None
    """[sum(lengths)] the part of a dense reward that each token earned; the last token gets the
    rest."""
    teacher_logprobs: FloatArray | None = None
    """[sum(lengths)] the teacher's log-probability of each token, if a server scores it."""
    sampling_mask: SamplingMask | None = None
    """The tokens that each token was sampled from; None: the whole vocabulary."""
    experts: IntArray | None = None
    routed: IntArray | None = None
    branches: IntArray | None = None
    """[k, 3] sample and `Branch`, in the order of the tokens; None: no sample has any."""
    turns: IntArray | None = None
    """[samples] turns of each, with `rollout.episode: sessions` or `tools`."""

    @property
    def samples(self) -> int:
        """How many completions the group holds."""
        return len(self.lengths)

    def conversations_of(self, sample: int) -> list[Conversation]:
        """Return the conversations that the policy has seen of one sample: a single conversation if
        the sample has no branches. Raises ValueError if its branches do not fit."""
        rows = [] if self.branches is None else self.branches.tolist()
        branches = [Branch(start, after) for i, start, after in rows if i == sample]
        return conversations(len(self.prompt_tokens), int(self.lengths[sample]), branches)

    def in_loss(self, mask_truncated: bool) -> list[bool]:
        """Tell for each sample whether its tokens may be in the loss. A sample needs a reward and,
        with `mask_truncated`, an end of its own."""
        header = self.header
        return [
            reward is not None and not (mask_truncated and reason in TRUNCATED)
            for reward, reason in zip(header.rewards, header.finish_reasons, strict=True)
        ]

    def trained_lengths(self, mask_truncated: bool) -> GroupLengths:
        """The group's lengths as far as it is trained."""
        ends = self.lengths.cumsum()
        counts = [
            int(length) if trains and self.loss_mask[end - length : end].any() else 0
            for trains, end, length in zip(
                self.in_loss(mask_truncated), ends, self.lengths, strict=True
            )
        ]
        return GroupLengths(len(self.prompt_tokens), tuple(counts))

    def keep_experts(self, samples: Collection[int]) -> None:
        """Forget the expert routing of all samples but these: it is most of a group's memory."""
        if self.experts is None or self.routed is None:
            return
        ends = len(self.prompt_tokens) + self.routed.cumsum()
        pieces = [
            self.experts[end - known : end]
            for i, (end, known) in enumerate(zip(ends, self.routed, strict=True))
            if i in samples
        ]
        self.experts = np.concatenate([self.experts[: len(self.prompt_tokens)], *pieces])
        kept = [i in samples for i in range(self.samples)]
        self.routed = np.where(kept, self.routed, 0)

    def check(self) -> None:
        """Raise ValueError naming the first array that does not fit the others."""
        total = int(self.lengths.sum())
        for name in ("tokens", "loss_mask", "logprobs", "token_rewards", "teacher_logprobs"):
            array = getattr(self, name)
            if array is not None and len(array) != total:
                raise self._unfit(f"{name} has {len(array)} entries, lengths add up to {total}")
        for name in ("finish_reasons", "statuses", "rewards"):
            count = len(getattr(self.header, name))
            if count != self.samples:
                raise self._unfit(f"{name} has {count} entries for {self.samples} samples")
        if self.spans.ndim != 2 or self.spans.shape[1] != 4:
            raise self._unfit("spans is not [k, 4]")
        mask = self.sampling_mask
        if mask is not None and not (
            len(mask.counts) == total and mask.has(self.tokens)[self.loss_mask].all()
        ):
            raise self._unfit("sampling_mask lacks tokens that were sampled")
        self._check_experts()
        self._check_branches()

    def _check_branches(self) -> None:
        if self.turns is not None and len(self.turns) != self.samples:
            raise self._unfit(f"turns has {len(self.turns)} entries for {self.samples} samples")
        if self.branches is None:
            return
        if self.branches.ndim != 2 or self.branches.shape[1] != 3 or self.experts is not None:
            raise self._unfit("branches is not [k, 3], or comes with experts")
        if not {*self.branches[:, 0].tolist()} <= {*range(self.samples)}:
            raise self._unfit("branches names samples that there are not")
        for sample in range(self.samples):
            self.conversations_of(sample)

    def _check_experts(self) -> None:
        if self.experts is None and self.routed is None:
            return
        if self.experts is None or self.routed is None or self.experts.ndim != 3:
            raise self._unfit(
                "experts [tokens, layers, experts per token] and routed [samples] go together"
            )
        if len(self.routed) != self.samples or bool((self.routed > self.lengths).any()):
            raise self._unfit(
                f"routed {self.routed.tolist()} does not fit lengths {self.lengths.tolist()}"
            )
        tokens = len(self.prompt_tokens) + int(self.routed.sum())
        if len(self.experts) != tokens:
            raise self._unfit(
                f"experts has {len(self.experts)} entries, prompt and routed add up to {tokens}"
            )

    def _unfit(self, reason: str) -> ValueError:
        return ValueError(f"group of task {self.header.task}: {reason}")


def encode(group: TrajectoryGroup) -> memoryview:
    """The group as bytes. Raises ValueError if its arrays do not fit each other."""
    group.check()
    header = msgspec.msgpack.encode(group.header)
    highest = max(int(group.tokens.max(initial=0)), int(group.prompt_tokens.max(initial=0)))
    token_type = np.uint16 if highest <= np.iinfo(np.uint16).max else np.uint32
    arrays: dict[str, npt.NDArray[Any]] = {
        "prompt_tokens": group.prompt_tokens.astype(token_type),
        "lengths": group.lengths.astype(np.uint32),
        "tokens": group.tokens.astype(token_type),
        "loss_mask": np.packbits(group.loss_mask),
        "logprobs": group.logprobs.astype(np.float32),
        "spans": group.spans.astype(np.uint32),
    }
    if group.token_rewards is not None:
        arrays["token_rewards"] = group.token_rewards.astype(np.float32)
    if group.teacher_logprobs is not None:
        arrays["teacher_logprobs"] = group.teacher_logprobs.astype(np.float32)
    if group.sampling_mask is not None:
        arrays["sampling_mask"] = np.frombuffer(group.sampling_mask.pack(), dtype=np.uint8)
    if group.experts is not None and group.routed is not None:
        expert_type = np.uint8 if int(group.experts.max(initial=0)) < 256 else np.uint16
        arrays["experts"] = np.ascontiguousarray(group.experts, expert_type)
        arrays["routed"] = group.routed.astype(np.uint32)
    if group.branches is not None:
        arrays["branches"] = group.branches.astype(np.uint32)
    if group.turns is not None:
        arrays["turns"] = group.turns.astype(np.uint32)
    return _joined(struct.pack("<I", len(header)) + header, arrays)


def _joined(head: bytes, arrays: dict[str, npt.NDArray[Any]]) -> memoryview:
    """`head`, and the arrays as `safetensors.numpy.save` writes them.

    That makes three copies, and no other thread of the process runs meanwhile: 1.1 s for 206 MB on
    two cores. numpy makes one, and lets other threads run.
    """
    order = sorted(arrays, key=lambda name: (_TYPES.index(arrays[name].dtype), name))
    index, end = {}, 0
    for name in order:
        start, end = end, end + arrays[name].nbytes
        index[name] = {
            "dtype": f"{arrays[name].dtype.kind.upper()}{8 * arrays[name].itemsize}",
            "shape": arrays[name].shape,
            "data_offsets": (start, end),
        }
    text = msgspec.json.encode(index)
    text += b" " * (-len(text) % 8)
    head += struct.pack("<Q", len(text)) + text
    joined = np.empty(len(head) + end, np.uint8)
    joined[: len(head)] = np.frombuffer(head, np.uint8)
    at = len(head)
    for name in order:
        size = arrays[name].nbytes
        joined[at : at + size] = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8)
        at += size
    return joined.data


def decode(blob: bytes | memoryview) -> TrajectoryGroup:
    """The inverse of `encode`.

    Raises schema.SchemaMismatch for another version's bytes, ValueError for anything not whole.
    """
    header = decode_header(blob)
    start = 4 + struct.unpack_from("<I", blob)[0]
    try:
        arrays = load_arrays(bytes(blob[start:]))
        lengths = arrays["lengths"].astype(np.int64)
        bits, total = arrays["loss_mask"], int(lengths.sum())
        if len(bits) != (total + 7) // 8:  # numpy would fill up with zeros, however many
            raise ValueError(f"loss_mask has {len(bits)} bytes, lengths add up to {total}")
        mask = np.unpackbits(bits, count=total).astype(np.bool_)
        group = TrajectoryGroup(
            header=header,
            prompt_tokens=arrays["prompt_tokens"].astype(np.int64),
            lengths=lengths,
            tokens=arrays["tokens"].astype(np.int64),
            loss_mask=mask,
            logprobs=arrays["logprobs"],
            spans=arrays["spans"].astype(np.int64),
            token_rewards=arrays.get("token_rewards"),
            teacher_logprobs=arrays.get("teacher_logprobs"),
            sampling_mask=SamplingMask.unpack(total, arrays["sampling_mask"].tobytes())
            if "sampling_mask" in arrays
            else None,
            experts=arrays.get("experts"),
            routed=arrays["routed"].astype(np.int64) if "routed" in arrays else None,
            branches=arrays["branches"].astype(np.int64) if "branches" in arrays else None,
            turns=arrays["turns"].astype(np.int64) if "turns" in arrays else None,
        )
    except Exception as error:  # safetensors raises its own type, not a ValueError
        raise ValueError(f"trajectory group of task {header.task} is damaged: {error}") from error
    group.check()
    return group


def decode_header(blob: bytes | memoryview) -> GroupHeader:
    """The header alone, without touching the arrays. Raises as `decode` does."""
    if len(blob) < 4:
        raise ValueError("trajectory group is shorter than its length field")
    length = struct.unpack_from("<I", blob)[0]
    try:
        schema = msgspec.msgpack.decode(blob[4 : 4 + length], type=_SchemaOnly).schema
        require_schema("trajectory group", schema, SCHEMA)
        return msgspec.msgpack.decode(blob[4 : 4 + length], type=GroupHeader)
    except msgspec.MsgspecError as error:
        raise ValueError(f"trajectory group has a damaged header: {error}") from error


class _SchemaOnly(msgspec.Struct):
    schema: int
