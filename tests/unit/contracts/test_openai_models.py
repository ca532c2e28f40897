"""The names of fine-tuned models in OpenAI's API."""

import pytest

from services.contracts.openai_models import fine_tuned_name, read_fine_tuned_name


@pytest.mark.parametrize(
    ("base", "step", "name"),
    [
        ("Qwen/Qwen3-0.6B", None, "ft:Qwen/Qwen3-0.6B:acme:maths:0123abcd"),
        ("Qwen/Qwen3-0.6B", 20, "ft:Qwen/Qwen3-0.6B:acme:maths:0123abcd:ckpt-step-20"),
        ("run:9f3a1c00@5", None, "ft:run:9f3a1c00@5:acme:maths:0123abcd"),
        ("ckpt-step-3", 0, "ft:ckpt-step-3:acme:maths:0123abcd:ckpt-step-0"),
    ],
)
def test_a_name_reads_back_as_its_run_and_step(base: str, step: int | None, name: str) -> None:
    assert fine_tuned_name(base, "acme", "maths", "0123abcd", step) == name
    assert read_fine_tuned_name(name) == ("0123abcd", step)


def test_a_name_without_organisation_and_suffix_has_the_form_of_openai() -> None:
    assert fine_tuned_name("m", "", "", "0123abcd") == "ft:m:personal::0123abcd"
    assert read_fine_tuned_name("ft:m:personal::0123abcd") == ("0123abcd", None)


def test_colons_of_a_suffix_do_not_shift_the_id() -> None:
    name = fine_tuned_name("m", "a:b", "x y:ckpt-step-7", "0123abcd")
    assert name == "ft:m:a-b:x-y-ckpt-step-7:0123abcd"
    assert read_fine_tuned_name(name) == ("0123abcd", None)


@pytest.mark.parametrize(
    "name",
    [
        *("", ":", "ft:", "ft", "0123abcd", "ft:0123abcd", "ft:m:o:0123abcd", "m:m:o:s:0123abcd"),
        *("ft:m:o:s:0123ABCD", "ft:m:o:s:0123abc", "ft:m:o:s:0123abcd\n", "ft:m:o:s:٠١٢٣abcd"),
        *("ft:m:o:s:0123abcd:ckpt-step-", "ft:m:o:s:0123abcd:ckpt-step-1\n"),
        *("ft:m:o:s:0123abcd:ckpt-step--1", "ft:m:o:s:0123abcd:ckpt-step-01"),
        *("ft:m:o:s:0123abcd:ckpt-step-1234567890", "ft:m:o:s:0123abcd:ckpt-step-²", ":" * 100_000),
    ],
)
def test_another_text_is_no_fine_tuned_name(name: str) -> None:
    assert read_fine_tuned_name(name) is None
