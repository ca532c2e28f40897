"""Verifiers of form: `format` (think and answer tags, as minimind rewards them) and `xml_format`
(any list of tags).

They look only at tags, never at the text between them. Linear time.
"""

from pydantic import Field, field_validator

from reward.verifiers.base import Item, Verdict, Verifier, VerifierParams
from services.contracts.scores import ScoreStatus

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_OPENING, _CLOSING = "<think>\n", "\n</answer>"
_MIDDLES = ("\n</think>\n<answer>\n", "\n</think>\n\n<answer>\n")


class FormatParams(VerifierParams):
    """The rewards for the parts of the form."""

    pattern_reward: float = Field(
        0.5,
        allow_inf_nan=False,
        description="For a completion that is, all of it, `<think>`, `</think>`, `<answer>`, "
        "`</answer>`, each on a line of its own (an empty line may follow the second).",
    )
    tag_reward: float = Field(
        0.25, allow_inf_nan=False, description="For each of the four tags that occurs exactly once."
    )


class XmlFormatParams(VerifierParams):
    """The elements, and the shares of the whole form and of its parts."""

    tags: list[str] = Field(
        ["think", "answer"],
        min_length=1,
        max_length=32,
        description="Names of the elements, in the order in which they must come.",
    )
    whole_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of the reward for all elements in order with nothing outside them; the "
        "rest is shared equally by the elements that are there exactly once.",
    )

    @field_validator("tags")
    @classmethod
    def _names(cls, tags: list[str]) -> list[str]:
        for tag in tags:
            if not tag.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"{tag[:80]!r} is no name of a tag: letters, digits, - and _")
        if len(set(tags)) < len(tags):
            raise ValueError("a tag is named twice")
        return tags


class FormatVerifier(Verifier[FormatParams]):
    """Rewards think and answer tags. With the defaults, rewards are 0 to 1.5."""

    name = "format"
    description = "Rewards <think> and <answer> tags: 0.5 for the whole form, 0.25 for each tag."
    Params = FormatParams

    def score(self, item: Item, params: FormatParams) -> Verdict:
        text = item.prefill + item.completion
        single = [tag for tag in _TAGS if text.count(tag) == 1]
        whole = has_form(text)
        components = {
            "pattern": params.pattern_reward * whole,
            "tags": params.tag_reward * len(single),
        }
        missing = ", ".join(tag for tag in _TAGS if tag not in single)
        detail = f"not exactly once: {missing}" if missing else "each tag once"
        if not whole:
            detail += "; not the whole form"
        status = _status(whole and not missing, whole or bool(single))
        return Verdict(status, sum(components.values()), detail, components)


class XmlFormatVerifier(Verifier[XmlFormatParams]):
    """Rewards a list of elements. Rewards 0 to 1."""

    name = "xml_format"
    description = "Rewards a list of XML elements, in order, each once, with nothing outside them."
    Params = XmlFormatParams

    def score(self, item: Item, params: XmlFormatParams) -> Verdict:
        text = item.prefill + item.completion
        spans = [_span(text, tag) for tag in params.tags]
        right = sum(span is not None for span in spans)
        whole = _whole(text, spans)
        share = right / len(spans)
        components = {
            "elements": (1 - params.whole_share) * share,
            "whole": params.whole_share * whole,
        }
        missing = [tag for tag, span in zip(params.tags, spans, strict=True) if span is None]
        detail = f"not exactly once: {', '.join(missing)}" if missing else "each element once"
        if not whole and not missing:
            detail += "; not in order, or with text outside"
        status = _status(whole, right > 0)
        return Verdict(status, sum(components.values()), detail, components)


def has_form(text: str) -> bool:
    """Tell in linear time whether `text` has minimind's form. The dot takes line ends:
    `^<think>\\n.*?\\n</think>\\n\\n?<answer>\\n.*?\\n</answer>$`. The pattern itself takes
    quadratic time."""
    text = text.removesuffix("\n")
    end = len(text) - len(_CLOSING)
    if not text.startswith(_OPENING) or not text.endswith(_CLOSING):
        return False
    starts = ((text.find(middle, len(_OPENING)), len(middle)) for middle in _MIDDLES)
    return any(start >= 0 and start + length <= end for start, length in starts)


def _span(text: str, tag: str) -> tuple[int, int] | None:
    """Return the place of the element if its opening and its closing tag occur once, in this
    order."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start, end = text.index(opening), text.index(closing)
    return (start, end + len(closing)) if start < end else None


def _whole(text: str, spans: list[tuple[int, int] | None]) -> bool:
    position = 0
    for span in spans:
        if span is None or span[0] < position or text[position : span[0]].strip():
            return False
        position = span[1]
    return not text[position:].strip()


def _status(all_of_it: bool, some_of_it: bool) -> ScoreStatus:
    if all_of_it:
        return ScoreStatus.CORRECT
    return ScoreStatus.PARTIAL if some_of_it else ScoreStatus.WRONG
