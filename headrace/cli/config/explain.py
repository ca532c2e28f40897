"""`headrace explain`: what a key of the run config means, as the models that read it say."""

import json
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion
from headrace.cli.options import AsJson
from headrace.cli.output import CliError, out, print_json
from headrace.terminal import one_line

if TYPE_CHECKING:
    from headrace.cli.config.explained_keys import Child, Explained, Meaning

WIDTH = 80
LABEL = 10
"""The width of the labels on the left."""
MOST_NAMES = 12
"""Names of other frameworks that are shown."""


def explain(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="Such as optimizer.lr or rewards.0.weight. Default: the keys at the top.",
            autocompletion=completion.config_keys,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a key of the run config, or a section with its keys.

    Its type, its default, what it means, the values that it takes, and an example. A name of
    another framework is answered with the key here.

    Example:
    headrace explain optimizer.lr
    headrace explain algorithm.advantage
    """
    from headrace.cli.config.explained_keys import close_keys, explained, note_on

    explanation = explained(key or "")
    if explanation is None:
        assert key is not None
        note = note_on(key)
        close = [("", f"headrace explain {name}") for name in close_keys(key)]
        raise CliError(
            f"there is no key {key!r} in the run config"
            + ("; did you mean one of these?" if close else "")
            + (f" {note}" if note else ""),
            close,
        )
    if as_json:
        print_json(_document(explanation))
        return
    for line in _lines(explanation):
        out.print(one_line(line), markup=False, soft_wrap=True)


def _document(explanation: "Explained") -> dict[str, object]:
    return {
        "key": explanation.key,
        "meanings": [meaning._asdict() for meaning in explanation.meanings],
        "example": explanation.example,
        "elsewhere": explanation.elsewhere,
        "kinds": explanation.kinds,
        "keys": {
            kind: [child._asdict() for child in keys] for kind, keys in explanation.keys.items()
        },
    }


def _lines(explanation: "Explained") -> list[str]:
    from headrace.cli.config.explained_keys import in_shell

    lines = _labelled("KEY", explanation.key or "the run config")
    several = len(explanation.meanings) > 1
    for meaning in explanation.meanings:
        lines += ["", *_meaning(meaning, several, bool(explanation.keys))]
    if explanation.kinds:
        lines += ["", "KINDS", *_listed(list(explanation.kinds.items()))]
    for kind, keys in explanation.keys.items():
        lines += [
            "",
            "KEYS" if len(explanation.keys) == 1 else f"KEYS of {kind}",
            *_listed(_children(keys)),
        ]
    if explanation.example and not explanation.keys:
        lines += ["", *_labelled("EXAMPLE", in_shell(explanation.example))]
    if explanation.elsewhere:
        names = explanation.elsewhere
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        lines += ["", *_labelled("ELSEWHERE", ", ".join(names[:MOST_NAMES]) + more)]
    if explanation.keys:
        below = f"{explanation.key}.KEY" if explanation.key else "KEY"
        lines += ["", f"headrace explain {below} explains one of them."]
    return lines


def _meaning(meaning: "Meaning", several: bool, is_section: bool) -> list[str]:
    lines = _labelled("OF", ", ".join(meaning.kinds)) if several else []
    if not is_section:
        lines += _labelled("TYPE", meaning.type)
        shown = "required" if meaning.is_required else json.dumps(meaning.default, default=str)
        lines += _labelled("DEFAULT", shown)
    if meaning.values and not is_section:
        lines += _labelled("VALUES", ", ".join(map(str, meaning.values)))
    return lines + _labelled("MEANING", meaning.description) if meaning.description else lines


def _labelled(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=label.ljust(LABEL), subsequent_indent=" " * LABEL
    )


def _children(keys: "list[Child]") -> list[tuple[str, str]]:
    return [
        (child.name, f"({child.type}) {child.description.partition('. ')[0]}") for child in keys
    ]


def _listed(rows: list[tuple[str, str]]) -> list[str]:
    """Return rows of a name and a text, wrapped in two columns."""
    width = min(24, max((len(name) for name, _ in rows), default=0)) + 4
    lines = []
    for name, text in rows:
        start = f"  {name}".ljust(width)
        if len(start) > width:
            lines.append(start)
            start = " " * width
        lines += textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * width)
    return lines
