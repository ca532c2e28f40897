"""Frames on a stream, however the stream is cut."""

from hypothesis import given
from hypothesis import strategies as st

from reward.frames import Unpacker, pack


@given(st.lists(st.binary(max_size=50)), st.integers(min_value=1, max_value=60))
def test_frames_survive_any_cut_of_the_stream(bodies: list[bytes], size: int) -> None:
    stream = b"".join(len(body).to_bytes(4, "little") + body for body in bodies)
    unpacker = Unpacker()

    received = []
    for start in range(0, len(stream), size):
        received += unpacker.feed(stream[start : start + size])

    assert received == bodies


def test_a_frame_is_a_length_and_msgpack() -> None:
    assert pack("a") == b"\x02\x00\x00\x00" + b"\xa1a"
