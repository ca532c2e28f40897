"""Warnings for references that can be read, and yet are probably from the wrong column."""

import re
from collections.abc import Mapping
from typing import Any

from services.contracts.config import RLConfig, SFTConfig
from services.datasets.findings import short_json
from services.gateway.submission.row_sample import RowSample
from services.gateway.submission.verifier_check import rewards_by_key, scored_by

FEW = 3
"""Rows that may have equal answers by chance."""
COLUMN = "check that they come from the right column (`headrace datasets add FILE --answer COLUMN`)"
_WORD = re.compile(r"[^\W\d_]{2,}")
_FORMULA = re.compile(r"[\\^=+*/<>$_{}|√∞π]")
# Words that mathematics reads by value.
_VALUE = re.compile(
    r"\b(?:pi|inf|infinity|sin|cos|tan|log|ln|exp|sqrt|zero|half|(?:one|two|three|four|five|six|"
    r"seven|eight|nine|ten|eleven|twelve|hundred|thousand|million|billion)s?|"
    r"(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)\b",
    re.IGNORECASE,
)


def answer_warnings(config: RLConfig | SFTConfig, samples: Mapping[str, RowSample]) -> list[str]:
    """Warn for each dataset whose rows all have the same answer, and for one with words that the
    verifier `math` scores. `samples`: by the sections that name their datasets."""
    rewards = rewards_by_key(config) if isinstance(config, RLConfig) else {}
    warnings = []
    for section, sample in samples.items():
        key = f"{section}.dataset"
        answers = [row.answer for row in sample.rows.values()]
        if len(answers) < FEW:
            continue
        first = answers[0]
        if first not in (None, "") and all(answer == first for answer in answers):
            warnings.append(
                f"{key}: all {sample.words} have the same answer, {short_json(first)}: {COLUMN}"
            )
        scorers = {reward.verifier for reward in rewards.get(scored_by(key, rewards), [])}
        words = sum(map(_is_words, answers)) if "math" in scorers else 0
        if words * 2 > len(answers):
            warnings.append(
                f"{key}: the references of {words:,} of {sample.words} are words without a number "
                f"or a formula, which verifier 'math' compares as text: {COLUMN}, or choose a "
                "verifier for text (exact)"
            )
    return warnings


def _is_words(answer: Any) -> bool:
    """Whether `answer` is plain words, or a list of them."""
    if isinstance(answer, list):
        return bool(answer) and all(map(_is_words, answer))
    if not isinstance(answer, str) or not _WORD.search(answer):
        return False
    is_value = any(map(str.isnumeric, answer)) or _FORMULA.search(answer) or _VALUE.search(answer)
    return not is_value
