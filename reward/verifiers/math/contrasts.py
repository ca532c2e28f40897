"""Rewrites the contrasts of other languages in English: `nicht 5, sondern 7`, `5가 아니라 7` and
`不是5，而是7` become `is not 5 but 7`; `7, а не 5` becomes `7, not 5`. Linear time.

Verifiers rewrite completions before they search them. So their patterns know the contrasts of one
language.
"""

import re

# "Not" and "but" of one language: English has words such as "men" too.
_PAIRS = (
    (r"не\s", r"\sа\s"),
    (r"(?:nicht|kein)\s", r"\ssondern\s"),
    (r"no\s+(?:(?:es|son)\s)?", r"\ssino\s(?:es\s)?"),
    (r"(?:n'est\s+)?pas\s", r"\smais\s(?:plutôt\s)?"),
    (r"non\s+(?:è\s)?", r"\s(?:ma|bensì)\s(?:è\s)?"),
    (r"não\s+(?:é\s)?", r"\s(?:mas|e\s+sim)\s(?:é\s)?"),
    (r"nie\s", r"\slecz\s"),
    (r"niet\s", r"\smaar\s"),
    (r"(?:inte|ikke)\s", r"\s(?:utan|men)\s"),
    (r"(?:不是|并非|非)", r"(?:而是|(?<=,)\s{0,3}是)"),
)
# The denied value is short, and no sentence ends within it.
_VALUE = r"(?:[^\n.;!?]|\.(?=\d)){1,40}?"
_BEFORE = re.compile(
    "|".join(rf"(?<![A-Za-zа-я]){no}\s*({_VALUE}),?{but}\s*" for no, but in _PAIRS), re.IGNORECASE
)
_AFTER = re.compile(
    r"((?:[^\s,.;!?はが]|\.(?=\d)){1,40}?)\s{0,3}(?:(?:이|가|은|는)?\s*(?:아니(?:라|고)|아닌)|(?:では|じゃ)なく(?:て)?"
    r"|(?:değil|नहीं)(?=\s*,))[\s,]{0,3}"
)
_NOT_LAST = re.compile(
    r"[\s,]{0,3}(?:而不是|而非)\s*"
    r"|,?\s{1,3}(?:а\s+не|et\s+non(?:\s+pas)?|y\s+no|e\s+não|e\s+non|und\s+nicht)\s+"
    r"|,\s{0,3}(?:(?:no|pas|nicht|não|non|не)\s+|不是\s*)(?=\W{0,3}[\dA-Z]\b)",
    re.IGNORECASE,
)


def plain_contrasts(text: str) -> str:
    """Return `text` with its contrasts in English."""
    text = _NOT_LAST.sub(", not ", text)
    if not text.isascii():
        text = _AFTER.sub(r" is not \1 but ", text)
    return _BEFORE.sub(lambda match: f" is not {match[match.lastindex or 0]} but ", text)
