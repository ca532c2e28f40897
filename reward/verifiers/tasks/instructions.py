"""The 25 instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911), each as a check of a text.

The rules follow the authors' `instructions.py` (google-research, instruction_following_eval). Two
rules differ, because the authors use models of nltk, which have to be downloaded. Sentences end at
`.`, `!` or `?` before white space, except after abbreviations and initials. Words in capitals are
runs of letters, digits, hyphens and apostrophes. Keywords are literal text, not patterns.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]


class Instruction(NamedTuple):
    """One kind of instruction: the arguments that a row has to give, and the check."""

    needs: dict[str, type]
    follows: Check


def _compared(count: int, wanted: int, relation: Any) -> bool:
    """Compare `count` by one of the authors' two relations."""
    return count < wanted if relation == "less than" else count >= wanted


def _present(words: list[Any], text: str, whole: bool) -> list[bool]:
    edge = r"\b" if whole else ""
    return [
        re.search(f"{edge}{re.escape(str(word))}{edge}", text, re.IGNORECASE) is not None
        for word in words
    ]


def _language(text: str) -> str | None:
    """Return the ISO 639-1 code by langdetect, which the authors use. Return None if langdetect
    finds no letters."""
    # Its profiles take a second and 60 MB, and most services never need them.
    from langdetect import DetectorFactory, LangDetectException, detect

    # Without a seed, langdetect draws samples, and the next answer may differ.
    DetectorFactory.seed = 0
    try:
        return str(detect(text))
    except LangDetectException:
        return None


def _in_language(text: str, wanted: str) -> bool:
    """Tell whether a text is in a language. As for the authors, a text of unknown language
    passes."""
    return _language(text) in (wanted, None)


_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Capt|Lt|Mt|Inc|Ltd|Jr|Sr|Co|vs|e\.g|i\.e|Ph\.D)|\b[A-Za-z])\.$"
)


def sentences(text: str) -> int:
    """Return the number of sentences."""
    pieces = re.split(r"(?<=[.!?])[\"'”’)\]]*\s+", text.strip())
    ends = sum(_ABBREVIATION.search(piece) is None for piece in pieces[:-1])
    return ends + (1 if pieces[-1].strip() else 0)


def _paragraphs(text: str, arguments: Arguments) -> bool:
    """Whether the text has that many paragraphs. `***` divides them; only the first and the last
    may be empty, and then do not count."""
    first, *between = re.split(r"\s?\*\*\*\s?", text)
    last = [between.pop()] if between else []
    if not all(paragraph.strip() for paragraph in between):
        return False
    count = len(between) + sum(bool(paragraph.strip()) for paragraph in [first, *last])
    return bool(count == arguments["num_paragraphs"])


def _first_word(text: str, arguments: Arguments) -> bool:
    pieces = text.split("\n\n")
    count, nth = sum(bool(piece.strip()) for piece in pieces), arguments["nth_paragraph"]
    if not 1 <= nth <= count or not (paragraph := pieces[nth - 1].strip()):
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"')
    word = re.split(r"""[.,?!'"]""", word, maxsplit=1)[0].lower()
    return bool(count == arguments["num_paragraphs"] and word == arguments["first_word"].lower())


def _highlights(text: str, arguments: Arguments) -> bool:
    single = [highlight.strip("*").strip() for highlight in re.findall(r"\*[^\n*]*\*", text)]
    double = [highlight[2:-2].strip() for highlight in re.findall(r"\*\*[^\n*]*\*\*", text)]
    return bool(sum(map(bool, single + double)) >= arguments["num_highlights"])


def _sections(text: str, arguments: Arguments) -> bool:
    splitter = rf"\s?{re.escape(arguments['section_spliter'])}\s?\d+\s?"
    return bool(len(re.split(splitter, text)) - 1 >= arguments["num_sections"])


def _bullets(text: str, arguments: Arguments) -> bool:
    # The pattern begins at the bullet's own line: with `\\s*`, blank lines take quadratic time.
    bullets = re.findall(r"^[^\S\n]*\*[^*].*$", text, re.MULTILINE)
    bullets += re.findall(r"^[^\S\n]*-.*$", text, re.MULTILINE)
    return bool(len(bullets) == arguments["num_bullets"])


def _placeholders(text: str) -> int:
    """Return the matches of `\\[.*?\\]`, whose search takes quadratic time in many open
    brackets."""
    return sum("[" in piece for line in text.split("\n") for piece in line.split("]")[:-1])


def _has_title(line: str) -> bool:
    """Tell whether `<<[^\\n]+>>` matches more than signs, in linear time."""
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start < end - 2 and bool(line[start:end].lstrip("<").rstrip(">").strip())


def _postscript(text: str, arguments: Arguments) -> bool:
    marker = arguments["postscript_marker"]
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(patterns.get(marker, re.escape(marker.lower())), text.lower()) is not None


def _json(text: str, arguments: Arguments) -> bool:
    text = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(text: str, arguments: Arguments) -> bool:
    first, *between = text.split("******")
    last = [between.pop()] if between else []
    if not all(response.strip() for response in between):
        return False
    given = [response.strip() for response in [first, *between, *last] if response.strip()]
    return len(given) == 2 and given[0] != given[1]


def _capital_words(text: str, arguments: Arguments) -> bool:
    count = sum(word.isupper() for word in re.findall(r"[\w'’-]+", text))
    return _compared(count, arguments["capital_frequency"], arguments.get("capital_relation"))


def _constrained(text: str, arguments: Arguments) -> bool:
    return any(f"My answer is {choice}." in text for choice in ("yes", "no", "maybe"))


def _letters(text: str, arguments: Arguments) -> bool:
    count = text.lower().count(arguments["letter"].lower())
    return _compared(count, arguments["let_frequency"], arguments.get("let_relation"))


INSTRUCTIONS: dict[str, Instruction] = {
    "keywords:existence": Instruction(
        {"keywords": list}, lambda text, a: all(_present(a["keywords"], text, whole=False))
    ),
    "keywords:frequency": Instruction(
        {"keyword": str, "frequency": int},
        lambda text, a: _compared(
            len(re.findall(re.escape(a["keyword"]), text, re.IGNORECASE)),
            a["frequency"],
            a.get("relation"),
        ),
    ),
    "keywords:forbidden_words": Instruction(
        {"forbidden_words": list},
        lambda text, a: not any(_present(a["forbidden_words"], text, whole=True)),
    ),
    "keywords:letter_frequency": Instruction({"letter": str, "let_frequency": int}, _letters),
    "language:response_language": Instruction(
        {"language": str}, lambda text, a: _in_language(text, a["language"])
    ),
    "length_constraints:number_sentences": Instruction(
        {"num_sentences": int},
        lambda text, a: _compared(sentences(text), a["num_sentences"], a.get("relation")),
    ),
    "length_constraints:number_paragraphs": Instruction({"num_paragraphs": int}, _paragraphs),
    "length_constraints:number_words": Instruction(
        {"num_words": int},
        lambda text, a: _compared(len(re.findall(r"\w+", text)), a["num_words"], a.get("relation")),
    ),
    "length_constraints:nth_paragraph_first_word": Instruction(
        {"num_paragraphs": int, "nth_paragraph": int, "first_word": str}, _first_word
    ),
    "detectable_content:number_placeholders": Instruction(
        {"num_placeholders": int},
        lambda text, a: _placeholders(text) >= a["num_placeholders"],
    ),
    "detectable_content:postscript": Instruction({"postscript_marker": str}, _postscript),
    "detectable_format:number_bullet_lists": Instruction({"num_bullets": int}, _bullets),
    "detectable_format:constrained_response": Instruction({}, _constrained),
    "detectable_format:number_highlighted_sections": Instruction(
        {"num_highlights": int}, _highlights
    ),
    "detectable_format:multiple_sections": Instruction(
        {"section_spliter": str, "num_sections": int}, _sections
    ),
    "detectable_format:json_format": Instruction({}, _json),
    "detectable_format:title": Instruction(
        {}, lambda text, a: any(map(_has_title, text.split("\n")))
    ),
    "combination:two_responses": Instruction({}, _two_responses),
    "combination:repeat_prompt": Instruction(
        {"prompt_to_repeat": str},
        lambda text, a: text.strip().lower().startswith(a["prompt_to_repeat"].strip().lower()),
    ),
    "startend:end_checker": Instruction(
        {"end_phrase": str},
        lambda text, a: text.strip().strip('"').lower().endswith(a["end_phrase"].strip().lower()),
    ),
    "startend:quotation": Instruction(
        {}, lambda text, a: len(t := text.strip()) > 1 and t[0] == '"' == t[-1]
    ),
    "change_case:capital_word_frequency": Instruction({"capital_frequency": int}, _capital_words),
    "change_case:english_capital": Instruction(
        {}, lambda text, a: text.isupper() and _in_language(text, "en")
    ),
    "change_case:english_lowercase": Instruction(
        {}, lambda text, a: text.islower() and _in_language(text, "en")
    ),
    "punctuation:no_comma": Instruction({}, lambda text, a: "," not in text),
}
