"""The outcome of a grader: its score, the scores of its parts, and its errors by OpenAI's names."""

from dataclasses import dataclass, field

FLAGS = (
    "formula_parse_error",
    "sample_parse_error",
    "truncated_observation_error",
    "unresponsive_reward_error",
    "invalid_variable_error",
    "other_error",
    "python_grader_server_error",
    "python_grader_runtime_error",
    "model_grader_server_error",
    "model_grader_refusal_error",
    "model_grader_parse_error",
)
"""OpenAI's names of errors."""


class GraderError(Exception):
    """A grader gives no score, and the answer is not to blame. `kind`: what hit a limit. `is_late`:
    a limit of time."""

    def __init__(self, flag: str, message: str, kind: str = "", is_late: bool = False) -> None:
        super().__init__(message)
        self.flag, self.kind, self.is_late = flag, kind, is_late


@dataclass
class Outcome:
    """The outcome of one grader for one answer."""

    score: float | None = None
    """None: an error."""
    detail: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    """Scores of the graders of a `multi`, by their names, joined by dots."""
    flags: dict[str, str] = field(default_factory=dict)
    """Errors by OpenAI's names, and what happened. With a score, the answer is to blame."""
    kind: str = ""
    """The limit that a Python grader hit."""
    is_late: bool = False
    """Whether a limit of time was hit."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens by the models that were asked."""
