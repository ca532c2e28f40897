"""How similar two texts are: the measures of `text_similarity`, from 0 to 1. Pure.

Words are runs of letters, digits and `_`, in lower case. METEOR counts equal words and equal stems;
it has no synonyms, for which NLTK would need WordNet's data on each machine.
"""

import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

_WORD = re.compile(r"\w+")
BLEU_WORDS = 4
"""Words of the longest n-grams that BLEU and GLEU compare."""


def similarity(metric: str, text: str, reference: str) -> float:
    """Return the similarity of two texts by a metric that needs no model."""
    if metric == "fuzzy_match":
        return fuzz.ratio(text, reference) / 100
    ours, theirs = _words(text), _words(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    if metric == "rouge_l":
        return _f1(LCSseq.similarity(ours, theirs), len(ours), len(theirs))
    if metric.startswith("rouge_"):
        return _rouge(ours, theirs, int(metric.removeprefix("rouge_")))
    return min(1.0, _BY_NLTK[metric](ours, theirs))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _rouge(ours: Sequence[str], theirs: Sequence[str], size: int) -> float:
    """Return ROUGE-N: F1 of the n-grams that both have."""
    given, wanted = _grams(ours, size), _grams(theirs, size)
    if not given or not wanted:
        return 0.0
    return _f1((given & wanted).total(), given.total(), wanted.total())


def _grams(words: Sequence[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def _f1(common: int, given: int, wanted: int) -> float:
    return 2 * common / (given + wanted)


# NLTK takes a third of a second to import, which only runs with these metrics pay.


def _bleu(ours: list[str], theirs: list[str]) -> float:
    bleu: Any = importlib.import_module("nltk.translate.bleu_score")
    size = min(BLEU_WORDS, len(ours), len(theirs))
    weights = (1 / size,) * size
    # Halves the weight of each further n-gram size without a match, as mteval and sacrebleu do.
    smoothing = bleu.SmoothingFunction().method3
    return float(bleu.sentence_bleu([theirs], ours, weights, smoothing_function=smoothing))


def _gleu(ours: list[str], theirs: list[str]) -> float:
    gleu: Any = importlib.import_module("nltk.translate.gleu_score")
    return float(gleu.sentence_gleu([theirs], ours, max_len=BLEU_WORDS))


def _meteor(ours: list[str], theirs: list[str]) -> float:
    meteor: Any = importlib.import_module("nltk.translate.meteor_score")
    return float(meteor.single_meteor_score(theirs, ours, wordnet=_NoSynonyms()))


class _NoSynonyms:
    """Stands for WordNet."""

    def synsets(self, word: str) -> list[Any]:
        """Return no synonyms."""
        return []


_BY_NLTK: dict[str, Callable[[list[str], list[str]], float]] = {
    "bleu": _bleu,
    "gleu": _gleu,
    "meteor": _meteor,
}
