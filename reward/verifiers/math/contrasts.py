"""Finds the words that take a value back (`not 5`, `5 is wrong`) or bound it (`at least 5`), and
rewrites the contrasts of other languages in English: `nicht 5, sondern 7`, `5가 아니라 7` and
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
_JOINT = re.compile(
    r"(?<=[\d)}\]%$])(?: (?:(?P<or>oder|или|ou|lub|veya|hoặc|atau)|und|et|y|и|và) "
    r"| ?(?:\\text ?\{)? ?(?:(?P<han_or>或者?|または|또는|혹은)|和|与|および|그리고) ?\}?)"
    r"(?=(?:[A-Za-z] ?[=<>] ?)?[-+($\\]{0,3}[\d\\])",
)
# "Not" of other languages, before a value.
FOREIGN_NOT = (
    r"\b(?:не|nicht|n'est pas|pas|no es|não|non è|nie|niet|inte|ikke)\b|不(?:是|为|等|选|選)"
)
_COMPARED = r"(?:more|less|greater|fewer|smaller|larger|higher|lower|better|bigger|older|younger)"
# A bound differs from its number: `at least 15` is not 15.
_BOUND = (
    rf"{_COMPARED} than(?: or equal to)?|(?:less|greater) or equal to|at (?:the )?(?:least|most)"
    r"|(?<!add )(?<!adds )(?<!adding )(?<!sum )(?<!sums )up to|upwards of|in excess of"
    r"|exceed(?:s|ing)?|as (?:many|much|few|little|high|low) as"
    r"|(?:min(?:imum)?|max(?:imum)?)(?: of|(?=\.?\s*(?:\d|$)))"
    r"|under|(?<!\d )over|below|above|beyond|between"
)
# The same in other languages. 至少 and 最多 are no bounds: they answer "how many at least?".
_FOREIGN_BOUND = (
    r"\b(?:al menos|por lo menos|como (?:mínimo|máximo)|a lo sumo|(?:más|menos|mais|plus|moins) de"
    r"|(?:mayor|menor|maior) (?:que|a)|au (?:moins|plus)|mindestens|höchstens|(?:mehr|weniger) als"
    r"|pelo menos|no (?:mínimo|máximo)|almeno|al massimo|(?:più|meno) di|minstens|hoogstens"
    r"|(?:meer|minder) dan|co najmniej|co najwyżej|(?:więcej|mniej) niż|ít nhất|nhiều nhất|en az"
    r"|en fazla|(?:не )?(?:больше|меньше|более|менее))\b"
    r"|(?:不?(?:大于|小于|超过|多于|少于|到)|不足|低于|高于)"
)
_FOREIGN_BOUND_AFTER = r".{0,3}(?:以上|以下|以内|未満|이상|이하|미만|초과|[到至~]\s?\d)"
# Words between a mark and the value that take the value back.
TAKEN_BACK = re.compile(
    r"n't\b|\b(?:not|never|no longer|neither|nor|rather than|instead of|other than|unlike|except|"
    rf"{_BOUND}|half|twice|thrice|double|triple|third|quarter|percent of|"
    rf"anything but)\b|{FOREIGN_NOT}|{_FOREIGN_BOUND}",
    re.IGNORECASE,
)
# Words after a value that take the value back.
_DENIED_AFTER = (
    r"[\s*$)%]{0,3}(?:(?:is|was|are|were|can|could|must|does|do|would|cannot)(?:n't|\s*not|\s+(?:be\s+)?"
    r"(?:wrong|incorrect|false|impossible|invalid))\b|不是|不对|不正确|错|değil"
    # "Is not", in Japanese, Korean and Hindi.
    r"|.{0,4}(?:では(?:ない|な[くい]|ありません)|じゃない|아니|아닙|नहीं))"
)
# `Is it 4? No.`
_ANSWERED_NO = r"\s?\?+\s?(?:no|nope|nein|non|нет)\b(?! doubt)"
BOUNDED = re.compile(
    rf"\W*(?:(?:an?|no|not)\s+)?(?:{_BOUND})\b\W*\d|[^\w\n]*\d[\d,./]*(?<!,)%?(?:\s+[A-Za-z]+)?"
    rf"(?:\s+(?:or|and)\s+(?:{_COMPARED}|above|below|over|under|up)\b"
    r"|\s+at\s+(?:the\s+)?(?:least|most)\b|\+\s*(?:$|\s[A-Za-z]{3})"
    rf"|{_DENIED_AFTER}|{_FOREIGN_BOUND_AFTER})|\W*(?:{_FOREIGN_BOUND})\W*\d",
    re.IGNORECASE,
)
# `between 5 and 7, so 6`.
CONCLUDED = re.compile(r",\s(?:so|hence|thus|therefore)\b[\s$]{1,3}(?=-?[\d\\])", re.IGNORECASE)
GIVEN_INSTEAD = re.compile(
    r"\b(?:but|rather|instead|actually|it is|it's|it must be)\b\W*"
    r"|,\s(?:so|hence|thus|therefore)\b\W*|\u800c\u662f",
    re.IGNORECASE,
)
# A value after "it is", up to the end of its sentence.
_NUMBER = r"[\s*$(\[-]{0,4}(?:\d|\.\d|\\(?!text)|[\u20ac\u00a3\u00a5]|(?-i:[A-HJ-Z])(?![\w']))"
_VALUE_LEFT = (
    r"(?:(?!\b(?:more|less|fewer|times|than|of|are|in|when|if|for|with|as)\b)"
    r"(?:[^\n.;!?]|\.(?=\d))){1,60}(?=[.;!?\n]|$)"
)
_IS = (
    r"(?:(?:it|that|this|the (?:(?:correct|right|actual|real|true|final) )?(?:answer|value|one))"
    r"(?: (?:is|should(?: have)? be(?:en)?|must be|has to be)|'s)\b"
    r"(?: (?:actually|really|in fact|instead))?:?\s?)"
)
_NAMED = rf"(?={_NUMBER}|(?-i:[A-HJ-Z])){_VALUE_LEFT}"
_REGRET = (
    r"(?:\W{0,3}\b(?:no|nope|wait|hold on|hmm|sorry|oops|correction|scratch that|actually"
    r"|or rather|i meant?|i (?:made|see) an? (?:\w{1,20} )?(?:error|mistake)"
    r"|(?:that|this|it)(?: is|'s| was) (?:wrong|incorrect|false))\b)"
)
# "On second thought, it is 5", and with "should" some work may stand between.
_RECHECKED = (
    r"\W{1,3}(?:(?:but|hmm|wait),? )?(?:(?:let me|let's|let us|i'll|i will) (?:re-?|double[ -]?)?"
    r"(?:check|verify|think|calculat|comput|consider|examin|do)\w*|on second thoughts?"
    r"|(?:re)?checking(?: again)?|(?:upon|on|after) (?:re\w+|closer \w+))"
)
_GET = r"(?:so )?(?:we|i) (?:get|got|obtain|find)\b\s?"
# The words after a value that replace it: `4? No, it is 5`, `4, but it should be 5`.
_REPLACED = re.compile(
    rf"[\s$*)]{{0,4}},?\s?\b(?:but|however|yet)\b{_REGRET}{{0,2}}\W{{0,3}}{_IS}(?P<but>{_NAMED})"
    rf"|\W{{0,3}}{_REGRET}{{1,3}}\W{{1,3}}(?:{_IS}(?P<said>{_NAMED})|(?P<bare>(?={_NUMBER}){_VALUE_LEFT}))"
    rf"|{_RECHECKED}(?: [a-z' ]{{1,30}})?\W{{1,3}}(?:{_IS}|{_GET})(?P<again>{_NAMED})"
    rf"|{_RECHECKED}[^\n]{{0,80}}?\b(?:it|that|this|the answer) should (?:have )?be(?:en)? "
    rf"(?P<should>{_NAMED})",
    re.IGNORECASE,
)
_JUDGED = re.compile(
    rf"{_REGRET}{{0,2}}[\s$*).,?!-]{{0,5}}(?:(?:but|and) )?(?:(?:that|this|it|which)\b ?)?"
    r"(?:(?:(?:is|was)(?:n't| not)|'s not) (?:(?:the|a|my) )?"
    r"(?:(?:correct|right|final|true|valid|actual)\b(?: (?:answer|solution|value))?"
    r"|(?:answer|solution|value)\b)"
    r"|(?:cannot|can't) be (?:(?:the )?(?:correct|right|true)|the answer)\b"
    r"|(?:is|was|seems|looks|must be|'s) (?:clearly |obviously )?"
    r"(?:wrong|incorrect|false|invalid|impossible)\b)"
    rf"|{_ANSWERED_NO}|\s?\((?:wrong|incorrect|false)\)",
    re.IGNORECASE,
)
_INSTEAD = re.compile(rf"\W{{1,5}}(?:so )?{_IS}(?P<said>{_NAMED})", re.IGNORECASE)
_NOT_BEFORE = re.compile(
    rf"(?:\bnot|n't|\bcannot|\b(?:wrong|incorrect|false) (?:answer|value)(?: is| was)"
    rf"|\b(?:rather than|instead of)|{FOREIGN_NOT})"
    r"(?: (?:be|equal(?: to)?|simply))?[\s$*(]{0,4}$",
    re.IGNORECASE,
)
_TURNS = re.compile(
    r",?\s\b(?:but|however|yet)\b|[.?!,;]|\s[-\u2014]|\s(?=(?:is|was|no|wait|can't|cannot)\b|\()",
    re.IGNORECASE,
)
_DENIED_LATER = re.compile(rf"{_DENIED_AFTER}|{_ANSWERED_NO}", re.IGNORECASE)
_DENIED = re.compile(
    rf"(?:{TAKEN_BACK.pattern})"
    r"(?: (?:be|é|è|es|est|ist|equal(?: to)?|равен|равна|равно|gleich|igual a))?\.?\s*$",
    re.IGNORECASE,
)


def plain_joints(text: str) -> str:
    """Return `text` with "and" and "or" between values in English."""
    return _JOINT.sub(lambda match: " or " if match["or"] or match["han_or"] else " and ", text)


def plain_contrasts(text: str) -> str:
    """Return `text` with its contrasts, and "and" and "or" between values, in English."""
    text = _NOT_LAST.sub(", not ", text)
    if not text.isascii():
        text = _AFTER.sub(r" is not \1 but ", text)
    text = _BEFORE.sub(lambda match: f" is not {match[match.lastindex or 0]} but ", text)
    return plain_joints(text)


def is_denied(text: str, start: int, end: int) -> bool:
    """Tell whether a negation, or a bound such as "at least", stands before `start` in `text`, or a
    negation after `end`."""
    before = _DENIED.search(text, max(start - 40, 0), start)
    return before is not None or _DENIED_LATER.match(text, end) is not None


def correction(text: str, end: int) -> str | None:
    """Return the value that replaces the value before `end` in `text`: 5 for `4? No, it is 5.`

    Return an empty string if the value is only taken back, and None if it stands."""
    judged = _JUDGED.match(text, end)
    replaced = _REPLACED.match(text, end) or (judged and _INSTEAD.match(text, judged.end()))
    if replaced:
        return next(filter(None, replaced.groups())).strip()
    return None if judged is None else ""


def correction_within(text: str, length: int) -> str | None:
    """Return the correction of the value that `text` begins with, as `correction` does. It begins
    within `length` characters."""
    for turn in _TURNS.finditer(text, 1, length):
        replaced = correction(text, turn.start())
        if replaced is not None:
            return replaced
    return None


def is_negated(text: str, start: int) -> bool:
    """Tell whether "not" stands right before `start`."""
    return _NOT_BEFORE.search(text, max(start - 40, 0), start) is not None
