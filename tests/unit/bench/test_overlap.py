"""The simulated GPUs' arithmetic, and the figures of the overlap benchmark, by hand."""

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from bench.runs.overlap import figures, requeued
from bench.simulated import gpus
from bench.simulated.vllm import spans
from learner.coordinate.planner import REQUEUED


def test_a_prompt_has_the_same_lengths_whenever_it_is_sampled() -> None:
    assert gpus.lengths("a") == gpus.lengths("a") != gpus.lengths("b")
    assert len(gpus.lengths("a")) == gpus.SAMPLES


def test_lengths_have_a_long_tail_that_is_cut_off() -> None:
    drawn = [length for seed in range(2000) for length in gpus.lengths(str(seed))]
    assert min(drawn) >= 1
    assert max(drawn) == gpus.LONGEST == 512
    assert 0.01 < mean(length == 512 for length in drawn) < 0.04
    assert 4 < 512 / mean(drawn) < 5


def test_seconds_are_those_of_gpus_that_are_always_full() -> None:
    # 3 GPUs x 64 sequences x 100 tokens/s each.
    assert gpus.generation_seconds(19_200) == pytest.approx(1.0)
    assert gpus.training_seconds(19_200) == pytest.approx(1.0)


def test_a_synchronous_step_waits_for_its_longest_answer_and_trains_on_all_gpus() -> None:
    # 5 s for 500 tokens; 1,000 tokens of training take 1,000 / 19,200 s on one GPU.
    answers = [500, *[2] * 250]
    assert gpus.synchronous_seconds(answers) == pytest.approx(5 + 1000 / 19_200 / 4)


def test_answers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="257 answers do not fit into 4 x 64 sequences"):
        gpus.synchronous_seconds([1] * 257)


def test_tokens_are_of_the_version_that_was_live_when_their_time_came() -> None:
    # 10 tokens from 5.00 s on, 0.01 s each; `b` came with the fourth, `c` after the last.
    versions = [(0.0, "default"), (4.0, "a"), (5.025, "b"), (6.0, "c")]
    assert spans(versions, 5.0, 10) == [
        ("a", 0, 3),
        ("b", 3, 10),
    ]


def row(time: float) -> dict[str, Any]:
    """A step of 256 answers of 75 tokens."""
    return {
        "time": time,
        "response/tokens_mean": 75.0,
        "time/step": 2.0,
        "time/waiting_for_groups": 1.0,
        "time/workers_waiting_for_admission": 0.0,
        "time/training": 1.0,
        "staleness/mean": 0.5,
        "wire/bytes_per_token": 8.0,
    }


def test_the_share_is_of_what_the_gpus_could_have_done_in_the_window() -> None:
    found = figures([row(10.0), row(12.0), row(14.0)], warmup=1, steps=2)
    # 256 x 75 = 19,200 tokens are 1 s of generation and 1 s of training; a step took 2 s.
    assert (found["seconds"], found["steps"]) == (4.0, 2)
    assert found["share"] == pytest.approx(0.5)
    assert found["generating"] == pytest.approx(0.5)
    assert found["training"] == pytest.approx(0.5)
    assert found["tokens_per_answer"] == 75
    synchronous = gpus.synchronous_seconds_per_token() * 2 * 19_200
    assert found["speedup"] == pytest.approx(synchronous / 4)


def test_requeued_groups_are_counted_from_the_learners_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        f'{{"event": "{REQUEUED}", "groups": 2}}\n'
        "a line of a library\n"
        '{"event": "run starts", "run": "a"}\n'
        f'{{"event": "{REQUEUED}", "groups": 1}}\n'
    )
    assert requeued(log) == 3
