"""Finds the end of a completion's thoughts, where its answer begins. Pure, linear time.

A thought ends at its closing tag. A thought without a closing tag was cut off, and has no answer
after it. A tag that is only mentioned (in a block of code, in quotes, after a word of a sentence)
opens and closes nothing. The chat template may have opened the thought: then the opening tag is
the prompt's end, and rollout workers send it along as `prefill`.
"""

import re
from typing import NamedTuple

_NAMES = (
    *("think", "thinking", "thought", "thoughts", "reasoning", "seed:think", "mm:think"),
    "longcat_think",  # LongCat
    *("think_fast", "think_faster"),  # K2
    *("scratchpad", "scratch_pad", "inner_monologue"),  # Hermes 3
    "antThinking",  # Claude
    *("reflection", "analysis"),  # Reflection, and prompts that ask for such a part
    *("reason", "rationale", "cot", "chain_of_thought", "inner_thought", "inner_thoughts"),
    *("thought_process", "thinking_process", "reasoning_process"),
)
_WORDS = "think(?:ing)?|thoughts?|reasoning"
_PATTERNS = (
    *((f"< ?{name} ?>", f"< ?/ ?{name} ?>") for name in _NAMES),
    (r"\[THINK\]", r"\[/THINK\]"),  # Mistral
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    # OpenThinker and Sky-T1 (begin_of_thought), Cohere (START_THINKING), Solar (think)
    (
        rf"<\|(?:begin_of_|start_of_|begin_|start_)?(?:{_WORDS})(?:_begin|_start)?\|>",
        rf"<\|(?:(?:end_of_|end_|/)(?:{_WORDS})|(?:{_WORDS})_end)\|>",
    ),
    ("◁think▷", "◁/think▷"),  # Kimi-VL
    (r"<unused94>thought\b", "<unused95>"),  # MedGemma
    # Gemma 4
    (r"<\|channel>(?:thought\b)?", r"<channel\|>"),
    # gpt-oss writes each message into a channel, and its answer into the one that is named `final`.
    (
        r"<\|channel\|>(?:analysis|commentary)[^<]{0,200}(?:<\|message\|>)?",
        r"<\|channel\|>final[^<]{0,200}<\|message\|>",
    ),
)
"""Opening and closing tags of thoughts that common models are trained with."""

_OPENINGS = "|".join(f"(?P<open{n}>{opening})" for n, (opening, _) in enumerate(_PATTERNS))
_CLOSINGS = "|".join(f"(?P<close{n}>{closing})" for n, (_, closing) in enumerate(_PATTERNS))
_CLOSING_OF = {
    str(n): re.compile(closing, re.IGNORECASE) for n, (_, closing) in enumerate(_PATTERNS)
}
# The first character alone decides at most places of a text, which is much quicker.
_TAGS = rf"(?=[<\[◁])(?:{_OPENINGS}|{_CLOSINGS})"
_TAG = re.compile(_TAGS, re.IGNORECASE)
_TOKEN = re.compile(
    r"""(?=[\n"'`~ \t<\[◁])(?:(?P<fence>^[ \t]*(?:`{3,}|~{3,}))|(?P<line>\n+)"""
    rf"""|(?P<quote>"+|`+|(?<!\w)'+|'+(?!\w))|{_TAGS})""",
    re.IGNORECASE | re.MULTILINE,
)
_LONG_QUOTES = {'"""', "'''"}
_TOKEN_OF_A_TAG = re.compile(
    rf"{_OPENINGS}|{_CLOSINGS}|<unused94>|<\|channel\|>|<\|message\|>", re.IGNORECASE
)
_PREFILL = re.compile(rf"(?:{_OPENINGS})\s*(?:(?:{_CLOSINGS})\s*)?\Z", re.IGNORECASE)
_PREFILL_CHARS = 400
# A sentence or a formula about a tag: "the <think> tag", `s.split(<think>`.
_MENTION = re.compile(
    r"(?:\b(?:an?|and|between|in|inside|my|of|or|the|use|used|using|with|within|your)[ \t]|"
    r"[\\=(+/^#|])\Z",
    re.IGNORECASE,
)
_TAG_OF = re.compile(r"[ \t]*(?:tags?|blocks?|tokens?)\b", re.IGNORECASE)


class Thoughts(NamedTuple):
    """The thoughts of a completion."""

    first: str | None
    """The text of the first thought; None if no thought ends."""
    start: int | None
    """Where the answer begins, in characters; None if the last thought has no end."""
    end: int
    """Where the answer ends: before a thought that only follows it, else with the completion."""


def is_tag(token: str) -> bool:
    """Tell whether a special token is, or begins, a tag of thoughts: the text for verifiers keeps
    it."""
    return _TOKEN_OF_A_TAG.fullmatch(token) is not None


def prefill_of(prompt: str) -> str:
    """The tags that `prompt` ends with, because its chat template writes them: `<think>\\n`, or
    both tags of an empty thought. Empty for any other prompt."""
    match = _PREFILL.search(prompt[-_PREFILL_CHARS:])
    return match.group() if match else ""


def answer_of(completion: str, prefill: str = "") -> str | None:
    """The completion after its thoughts; None if its last thought has no end."""
    thoughts = read_thoughts(completion, prefill)
    return None if thoughts.start is None else completion[thoughts.start : thoughts.end]


def read_thoughts(completion: str, prefill: str = "") -> Thoughts:
    """Find the thoughts of a completion. `prefill`: its beginning, if the prompt has that."""
    text = prefill + completion
    if not _TAG.search(text):
        return Thoughts(None, 0, len(completion))
    scan = _Scan(text)
    at = 0
    # Within a thought only its closing tag counts.
    while token := (_CLOSING_OF[scan.kind] if scan.kind else _TOKEN).search(text, at):
        scan.read(token)
        at = token.end()
    if scan.kind:
        return Thoughts(scan.first, None, len(completion))
    start, end = scan.answer()
    return Thoughts(scan.first, max(0, start - len(prefill)), max(0, end - len(prefill)))


class _Scan:
    """The state while the tags of a text are read, from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kind = ""
        """Number of the open thought's tags; empty outside of thoughts."""
        self.start = 0
        """Where the thought or the answer begins."""
        self.before: tuple[int, int] = (0, 0)
        """The text between the last thought and the thought before it."""
        self.first: str | None = None
        self.fence = ""
        """Opens the block of code that the scan is in."""
        self.quotes: set[str] = set()
        """Open quotes of the line, and open triple quotes."""
        self.mentions = 0
        """Opening tags that were only mentioned."""

    def read(self, token: re.Match[str]) -> None:
        """Take the next token of the text."""
        name = token.lastgroup or ""
        if self.kind or name.startswith("close"):
            self._close(token)
        elif name.startswith("open"):
            self._open(token, name.removeprefix("open"))
        elif name == "fence":
            mark = token.group().strip()
            if not self.fence:
                self.fence = mark
            elif mark.startswith(self.fence):
                self.fence = ""
        elif name == "line":
            self.quotes &= _LONG_QUOTES
        elif len(token.group()) % 2:
            long = token.group()[:3] in _LONG_QUOTES
            self.quotes ^= {token.group()[: 3 if long else 1]}

    def answer(self) -> tuple[int, int]:
        """Return where the answer begins and ends: after the last thought, or before it if only
        blanks follow."""
        if not self.text[self.start :].strip() and self.text[slice(*self.before)].strip():
            return self.before
        return self.start, len(self.text)

    def _open(self, token: re.Match[str], kind: str) -> None:
        before = self.text[max(self.start, token.start() - 12) : token.start()]
        mentioned = _MENTION.search(before) or _TAG_OF.match(self.text, token.end())
        if self.fence or self.quotes or mentioned:
            self.mentions += 1
        else:
            self.before = self.start, token.start()
            self.kind, self.start = kind, token.end()

    def _close(self, token: re.Match[str]) -> None:
        if not self.kind and self.mentions:
            self.mentions -= 1
            return
        # Without an opening tag the text before is a thought too, even if it has open blocks.
        if not self.kind and (self.quotes or (self.fence and self.first is not None)):
            return
        if not self.kind:
            self.before = (0, 0)
        if self.first is None:
            self.first = self.text[self.start : token.start()].strip()
        self.kind, self.start, self.fence = "", token.end(), ""
        self.quotes.clear()
