"""A mapping that cannot be read is answered with the key and an example."""

import pytest

from services.gateway.mappings import EXAMPLE, read_mapping
from services.http import Problem


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            '{"promt": "frage"}',
            "the mapping cannot be used (mapping.promt: unknown key (did you mean 'prompt'?); "
            "known here: prompt, answer, keep)",
        ),
        ('["question"]', "the mapping cannot be used (mapping: must be a mapping)"),
        ("prompt=frage", "the mapping is not JSON (Expecting value at character 0)"),
    ],
)
def test_a_mapping_that_cannot_be_read_is_answered_with_its_fault_and_an_example(
    text: str, detail: str
) -> None:
    with pytest.raises(Problem) as refused:
        read_mapping(text)
    assert refused.value.detail == f"{detail}: {EXAMPLE}"
