"""References to payloads outside of Redis."""

import pytest

from services.contracts.groups.payload import (
    MARK,
    REFERENCE,
    Damaged,
    Owner,
    PayloadFile,
    bytes_outside,
    owner_of,
    parse_reference,
    payload_name,
    reference,
)
from services.contracts.groups.trajectory import encode
from tests.unit.learner.policies import trajectory_group

OWNER = Owner("1a2b3c4d", 7, "0123456789abcdef")


def test_a_reference_names_a_file_and_a_payload_does_not_look_like_one():
    file = PayloadFile(payload_name(OWNER, "0" * 16), 206_000_000)
    assert parse_reference(reference(file)) == file
    assert len(reference(file)) < 150 < REFERENCE
    assert bytes_outside(reference(file)) == 206_000_000
    assert bytes_outside(bytes(encode(trajectory_group([1.0])))) == 0
    assert bytes_outside(MARK + b"damaged") == 0
    assert owner_of(file.name) == OWNER
    assert parse_reference(bytes(encode(trajectory_group([1.0])))) is None


@pytest.mark.parametrize(
    "name",
    [
        "runs/r/payloads/../../api-key",
        "runs/../payloads/7-0123456789abcdef-0123456789abcdef.group",
        "runs/.r/payloads/7-0123456789abcdef-0123456789abcdef.group",
        "runs/r/payloads/7-0123456789abcdef-0123456789abcdef.group\n",
        "runs/r/payloads/.7-0123456789abcdef-0123456789abcdef.group",
        "/runs/r/payloads/7-0123456789abcdef-0123456789abcdef.group",
        "runs/r/payloads/٧-0123456789abcdef-0123456789abcdef.group",
        "runs/r/payloads/7-0123456789abcdef-0123456789ABCDEF.group",
        "runs/r/payloads/7-0123456789abcdef.group",
        "api-key",
    ],
)
def test_a_name_that_no_payload_has_is_refused(name: str):
    assert owner_of(name) is None
    with pytest.raises(Damaged, match="a name that no payload has"):
        parse_reference(reference(PayloadFile(name, 1)))


@pytest.mark.parametrize("rest", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03"])
def test_the_error_names_a_damaged_reference(rest: bytes):
    with pytest.raises(Damaged, match="reference to its payload is damaged"):
        parse_reference(MARK + rest)
