"""The wire format of a group, byte by byte: each change needs a new schema."""

import struct
from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from services.contracts.groups.trajectory import (
    GroupHeader,
    TrajectoryGroup,
    decode,
    decode_header,
    encode,
)
from services.contracts.schema import SchemaMismatch

# Two samples, of one token and of two; the second's last token is not the policy's.
GROUP = TrajectoryGroup(
    header=GroupHeader(
        run="r",
        task=5,
        attempt="x",
        worker="w",
        row=3,
        lineage="a",
        tags=["a:1"],
        finish_reasons=["stop", "length"],
        statuses=["correct", "wrong"],
        rewards=[1.0, None],
        components={"math": [1.0, None]},
        leased_at=1.0,
        generated_at=2.0,
        scored_at=3.0,
    ),
    prompt_tokens=np.array([1, 7]),
    lengths=np.array([1, 2]),
    tokens=np.array([9, 10, 11]),
    loss_mask=np.array([True, True, False]),
    logprobs=np.array([-0.5, -1.0, 0.0], np.float32),
    spans=np.array([[0, 0, 1, 0], [1, 0, 1, 0]]),
)

# msgpack: de0015 a map of 21, a. a text, 9. a list, 8. a map, cb a float64, c0 nothing.
ONE, TWO, THREE = (bytes.fromhex(f"cb {double}") for double in (
    "3ff0000000000000", "4000000000000000", "4008000000000000"
))  # fmt: skip
HEADER = b"".join(
    [
        b"\xde\x00\x15",
        b"\xa3run\xa1r\xa4task\x05\xa7attempt\xa1x\xa6worker\xa1w\xa3row\x03\xa7dataset\xa0",
        b"\xaaprompt_key\xa0\xa3own\xc0",
        b"\xa7lineage\xa1a\xa4tags\x91\xa3a:1",
        b"\xaefinish_reasons\x92\xa4stop\xa6length",
        b"\xa8statuses\x92\xa7correct\xa5wrong",
        b"\xa7rewards\x92" + ONE + b"\xc0",
        b"\xaacomponents\x81\xa4math\x92" + ONE + b"\xc0",
        b"\xa7reasons\x90\xa9reference\xa0",
        b"\xaesampled_reward\xc0",
        b"\xa9leased_at" + ONE + b"\xacgenerated_at" + TWO + b"\xa9scored_at" + THREE,
        b"\xa6schema\x01",
    ]
)
# safetensors: types of four bytes first, then of two, then of one; filled up to a multiple of 8.
INDEX = (
    b'{"logprobs":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},'
    b'"lengths":{"dtype":"U32","shape":[2],"data_offsets":[12,20]},'
    b'"spans":{"dtype":"U32","shape":[2,4],"data_offsets":[20,52]},'
    b'"prompt_tokens":{"dtype":"U16","shape":[2],"data_offsets":[52,56]},'
    b'"tokens":{"dtype":"U16","shape":[3],"data_offsets":[56,62]},'
    b'"loss_mask":{"dtype":"U8","shape":[1],"data_offsets":[62,63]}}'
    b"   "
)
ARRAYS = bytes.fromhex(
    "000000bf 000080bf 00000000"  # -0.5, -1, 0
    "01000000 02000000"
    "00000000 00000000 01000000 00000000  01000000 00000000 01000000 00000000"
    "0100 0700"
    "0900 0a00 0b00"
    "c0"  # 110, and five bits of nothing
)
GOLDEN = (
    bytes.fromhex("20010000") + HEADER + bytes.fromhex("7801000000000000") + INDEX + ARRAYS
)  # 0x120 = 288 bytes of header, 0x178 = 376 of index


def test_a_group_is_encoded_as_fixed_bytes() -> None:
    assert (len(HEADER), len(INDEX), len(ARRAYS)) == (288, 376, 63)
    assert encode(GROUP) == GOLDEN


def test_fixed_bytes_are_decoded_as_the_group() -> None:
    decoded = decode(GOLDEN)
    assert decoded.header == decode_header(GOLDEN) == GROUP.header
    for array in fields(TrajectoryGroup)[1:]:
        np.testing.assert_array_equal(getattr(decoded, array.name), getattr(GROUP, array.name))


def routed_group(experts: int = 200, routed: tuple[int, ...] = (0, 1)) -> TrajectoryGroup:
    """GROUP with routing of its two prompt tokens and of the second answer's first token: two
    layers with three experts a token. `experts` is the largest expert number."""
    array = np.arange(experts - 17, experts + 1).reshape(3, 2, 3)
    return replace(GROUP, experts=array, routed=np.array(routed))


@pytest.mark.parametrize(("experts", "width"), [(200, 1), (255, 1), (256, 2)])
def test_recorded_routing_costs_a_byte_or_two_for_each_layer_and_expert(
    experts: int, width: int
) -> None:
    group = routed_group(experts)
    blob = encode(group)
    decoded = decode(blob)
    assert decoded.experts is not None
    assert decoded.experts.dtype.itemsize == width
    np.testing.assert_array_equal(decoded.experts, group.experts)
    np.testing.assert_array_equal(decoded.routed, [0, 1])
    plain = len(encode(replace(group, experts=None, routed=None)))
    # Two names in the index, and what they stand for.
    assert 18 * width + 8 < len(blob) - plain < 18 * width + 8 + 150


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routed": None}, "go together"),
        ({"experts": None}, "go together"),
        ({"routed": np.array([1])}, "does not fit lengths"),
        ({"routed": np.array([2, 0])}, "does not fit lengths"),
        ({"routed": np.array([1, 1])}, "experts has 3 entries, prompt and routed add up to 4"),
    ],
)
def test_routing_that_does_not_fit_its_tokens_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode(replace(routed_group(), **change))


def test_a_group_with_missing_bytes_is_refused() -> None:
    for length in range(len(GOLDEN)):
        with pytest.raises(ValueError, match="trajectory group") as refused:
            decode(GOLDEN[:length])
        assert refused.type is ValueError


def test_bytes_after_a_group_are_refused() -> None:
    with pytest.raises(ValueError, match="task 5 is damaged"):
        decode(GOLDEN + b"\0")


def test_a_mask_that_is_shorter_than_its_tokens_is_refused() -> None:
    # Lengths that add up to nine: one more byte of mask than there is.
    many = GOLDEN.replace(
        bytes.fromhex("01000000 02000000 00"), bytes.fromhex("01000000 0800000000")
    )
    with pytest.raises(ValueError, match="loss_mask has 1 bytes, lengths add up to 9"):
        decode(many)


def test_another_version_s_group_is_refused_by_name() -> None:
    sentence = (
        "group has schema 2, this process reads 1: run the same version of Headrace everywhere"
    )
    with pytest.raises(SchemaMismatch, match=sentence):
        decode(GOLDEN.replace(b"\xa6schema\x01", b"\xa6schema\x02"))
    # Whatever else that version's header holds.
    header = msgspec.msgpack.encode({"schema": 2, "tasks": [1, 2]})
    with pytest.raises(SchemaMismatch, match=sentence):
        decode_header(struct.pack("<I", len(header)) + header)


@pytest.mark.parametrize(
    ("samples", "tokens", "prompt", "vocabulary", "spans"),
    [
        (8, 64, 6, 20, 1),
        (8, 64, 100, 150_000, 2),
        (16, 512, 300, 150_000, 8),
        (16, 8192, 1000, 150_000, 20),
    ],
    ids=["demo", "short", "usual", "long reasoning"],
)
def test_a_token_costs_at_most_12_bytes(
    samples: int, tokens: int, prompt: int, vocabulary: int, spans: int
) -> None:
    """Bytes of a token: 2 or 4 of id, 4 of log-probability, 1/8 of mask, and its share of the
    header."""
    total = samples * tokens
    rng = np.random.default_rng(0)
    edges = np.linspace(0, tokens, spans + 1).astype(int)
    header: dict[str, Any] = {
        "run": "0123abcd",
        "task": 123_456,
        "attempt": "0123456789abcdef",
        "worker": "a-host-with-a-name-0123ab",
        "row": 12_345,
        "lineage": "0123ab",
        "tags": [f"0123ab:{1000 + n}" for n in range(spans)],
        "finish_reasons": ["length"] * samples,
        "statuses": ["correct"] * samples,
        "rewards": [1.0] * samples,
        "components": {"math": [1.0] * samples, "length": [0.5] * samples},
    }
    group = TrajectoryGroup(
        header=GroupHeader(**header),
        prompt_tokens=rng.integers(0, vocabulary, prompt),
        lengths=np.full(samples, tokens),
        tokens=rng.integers(0, vocabulary, total),
        loss_mask=np.ones(total, bool),
        logprobs=np.full(total, -1, np.float32),
        spans=np.array(
            [(s, edges[k], edges[k + 1], k) for s in range(samples) for k in range(spans)]
        ),
    )
    assert len(encode(group)) / total <= 12
