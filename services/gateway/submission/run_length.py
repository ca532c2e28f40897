"""How many steps a run has, by its config and the rows of an epoch. Pure."""

from fractions import Fraction

from headrace.wording import counted
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.records import RunRecord
from services.gateway.submission.model_check import Problems


def run_length(config: RLConfig | SFTConfig, rows: int, problems: Problems) -> int | None:
    """Return the number of the run's steps: `training.max_steps`, else ⌊epochs · `rows` / prompts
    of a step⌋. Return None if nobody knows it yet: applications bring the prompts (no `rows`), or
    the learner of a supervised run first has to tokenise its rows. A run without a step is added to
    `problems`."""
    if isinstance(config, SFTConfig) or config.training.max_steps is not None or not rows:
        return config.training.max_steps
    epochs = config.training.epochs or 1
    batch = config.algorithm.prompts_per_step
    # As it is written: 0.29 · 100 / 29 is one step, and a little less as a float.
    steps = int(Fraction(repr(epochs)) * rows / batch)
    if steps == 0:
        problems.append(
            (
                "training.epochs",
                f"{epochs:g} × {counted(rows, 'row')} make no step of {counted(batch, 'prompt')}: "
                "lower algorithm.prompts_per_step, or set training.max_steps",
            )
        )
    return steps


def trained_already(max_steps: int | None, previous: RunRecord | None) -> Problems:
    """A problem for a run whose steps `previous`, the resumed run, has trained already. An
    evaluation of a model has no steps."""
    if max_steps is None or previous is None or previous.max_steps == 0:
        return []
    if max_steps > (trained := previous.committed_step):
        return []
    words = f"the run that is resumed has trained {counted(trained, 'step')}: set it higher"
    return [("training.max_steps", f"is {max_steps}, and {words}")]


def repeated_rows(config: RLConfig | SFTConfig, rows: int, max_steps: int | None) -> list[str]:
    """A warning for steps that have more prompts than an epoch has rows."""
    if not isinstance(config, RLConfig) or max_steps == 0 or rows == 0:
        return []
    batch = config.algorithm.prompts_per_step
    if batch <= rows:
        return []
    return [
        f"algorithm.prompts_per_step: a step has {counted(batch, 'prompt')}, and an epoch only "
        f"{counted(rows, 'row')}: each step takes each row about {batch / rows:.3g} times"
    ]
