"""How many steps a run gets from its epochs."""

from services.contracts.config import RLConfig, parse_config
from services.gateway.submission.model_check import Problems
from services.gateway.submission.run_length import repeated_rows, run_length


def steps(epochs: float, rows: int, prompts_per_step: int) -> tuple[int | None, Problems]:
    config = parse_config(
        {
            "type": "rl",
            "model": {"path": "org/model"},
            "data": {"dataset": "d"},
            "rewards": [{"verifier": "math"}],
            "algorithm": {"prompts_per_step": prompts_per_step},
            "training": {"epochs": epochs},
        }
    )
    assert isinstance(config, RLConfig)
    problems: Problems = []
    return run_length(config, rows, problems), problems


def test_a_share_of_an_epoch_that_makes_whole_steps_makes_all_of_them() -> None:
    assert steps(0.29, 100, 29) == (1, [])
    assert steps(0.57, 100, 1) == (57, [])
    assert steps(2.5, 10, 10) == (2, [])


def test_a_share_of_an_epoch_that_makes_no_step_is_refused() -> None:
    ((key, reason),) = steps(0.28, 100, 29)[1]
    assert key == "training.epochs"
    assert "make no step" in reason


def test_a_step_that_takes_rows_more_than_once_gives_a_warning_with_the_numbers() -> None:
    raw = {"model": {"path": "org/model"}, "data": {"dataset": "d"}}
    config = parse_config(raw | {"rewards": [{"verifier": "math"}]})
    assert isinstance(config, RLConfig)
    batch = config.algorithm.prompts_per_step
    assert repeated_rows(config, batch // 2, 10) == [
        f"algorithm.prompts_per_step: a step has {batch} prompts, and an epoch only {batch // 2} "
        "rows: each step takes each row about 2 times"
    ]
    assert repeated_rows(config, batch // 2, 0) == []
    assert repeated_rows(config, batch, 10) == []
