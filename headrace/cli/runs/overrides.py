"""`--set KEY=VALUE`: keys of a config, overridden on the command line.

A value is read by the type of its key in the config's schema. Text stays as it is typed: YAML would
take `####` for a comment and `Q: {prompt}` for a mapping. All other values are YAML.
"""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli.completion import settings
from headrace.cli.output import CliError, err, escape
from headrace.cli.values import as_setting, set_value
from headrace.merging import NoSuchPlace, place_in
from headrace.other_systems.values import OTHER_VALUES
from headrace.run_schema import (
    ROOTS,
    Field,
    Schema,
    fields_of,
    is_text,
    kind_of,
    may_be,
    members_of,
    root,
    sections_of,
    value_for,
)
from headrace.wording import quoted

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=settings,
        help="Override a config key, e.g. optimizer.lr=1e-6 or rewards.0.weight=2. Repeat. Text is "
        r"taken as typed, but \n is a new line (\\n is a backslash and an n, and a LaTeX command "
        r"such as \neq stays); other values are "
        "YAML. KEY=@FILE reads the value from a file (@@ is a text's own @).",
    ),
]
NEW_LINE = re.compile(
    r"\\(\\n|n(?!(?:abla|atural|eq?|earrow|eg|exists|i|mid|onumber|ot|otin|u|warrow)(?![A-Za-z])))"
)
EXPLAINED = "sampling.top_k"
"""A key whose wrong values the gateway explains better than by its type."""
MOST_BYTES = 1 << 20
"""The largest file that may hold a value. The gateway takes no larger config."""


def overrides_from(settings: list[str], steps: bool = False) -> dict[str, Any]:
    """Return `["a.b=1"]` as {"a": {"b": 1}}. With `steps`, each key begins with the name of a
    chain's step. Raises CliError."""
    result: dict[str, Any] = {}
    seen: set[str] = set()
    for setting in settings:
        key, separator, text = setting.partition("=")
        parts = key.strip().split(".")
        if not separator or not all(parts):
            raise CliError(f"--set {setting} is not KEY=VALUE, like optimizer.lr=1e-6")
        value = _typed(key, parts[1:] if steps else parts, text)
        if key in seen:
            err.print(f"[dim]--set {escape(key)} is there twice: the last value counts[/]")
        seen.add(key)
        section, last = _place_of(parts, result)
        section[last] = value
    return result


def _typed(key: str, parts: list[str], text: str) -> Any:
    """Parse the text of `--set KEY=TEXT` by the type of the key. `parts` lead to the key."""
    read = text.startswith("@")
    if read and not text.startswith("@@"):
        text = file_text(key, text[1:])
    else:
        text, read = text.removeprefix("@") if read else text, False
    slots = _slots(parts)
    schemas = [slot.schema for slot in slots]
    if not (schemas and all(map(is_text, schemas))):
        value = set_value(key, text)
        _check(key, parts, value, slots)
        return value
    if text == "null" and any(may_be(schema, None) for schema in schemas):
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        err.print(f"[dim]--set {escape(key)}: the quotes around the text are part of it[/]")
    return text if read else _with_new_lines(text)


def file_text(key: str, name: str) -> str:
    """Return the text of the file `name`, the value of `key`, without its last line end. Raises
    CliError."""
    path = Path(name).expanduser()
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CliError(f"{key}: {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{key}: {name} is not UTF-8 text") from None
    if len(text) > MOST_BYTES:
        raise CliError(f"{key}: {name} has more than {MOST_BYTES >> 20} MiB")
    return text.removesuffix("\n").removesuffix("\r")


def _with_new_lines(text: str) -> str:
    r"""Replace each `\n` in `text` by a new line. `\\n` stays as the two characters, and so does a
    LaTeX command that begins with n."""
    return NEW_LINE.sub(lambda match: "\n" if match[1] == "n" else "\\n", text)


class _Slot(NamedTuple):
    """A place for a value in the run config."""

    schema: Schema
    field: Field | None
    """Its field, unless it is an item of a list."""


def _slots(parts: list[str]) -> list[_Slot]:
    """List the places that the key may mean: in an RL run, in a supervised run, in each member of a
    union. Return an empty list for a key that no run has, and for a key inside a free mapping."""
    slots = [_Slot(root(kind), None) for kind in ROOTS]
    for part in parts:
        inside: list[_Slot] = []
        for schema in (member for slot in slots for member in members_of(slot.schema)):
            if "properties" in schema:
                if part in (fields := fields_of(schema)):
                    inside.append(_Slot(fields[part].schema, fields[part]))
            elif isinstance(schema.get("items"), dict) and part.isdecimal():
                inside.append(_Slot(schema["items"], None))
        slots = inside
    return slots


def _check(key: str, parts: list[str], value: Any, slots: list[_Slot]) -> None:
    """Raise CliError if no place for the key takes `value`. A section, and a mapping, is left to
    the gateway: it is merged with the recipe first."""
    fields = [slot.field for slot in slots if slot.field is not None]
    name = ".".join(parts)
    if isinstance(value, dict) or name in OTHER_VALUES or name == EXPLAINED:
        return
    is_item = not fields or len(fields) < len(slots)
    if is_item or any(sections_of(field.schema) for field in fields):
        return
    if any(may_be(field.schema, value) for field in fields):
        return
    kinds = " or ".join(dict.fromkeys(map(kind_of, fields)))
    example = shlex.quote(as_setting(key, value_for(fields[0])))
    raise CliError(
        f"--set {key}: {quoted(value)} does not fit; the key takes {kinds}. For example: "
        f"--set {example} (see `headrace explain {name}`)"
    )


def _place_of(parts: list[str], config: dict[str, Any]) -> tuple[Any, str | int]:
    """Return the mapping or list of `config` that holds the key, and the last part of the key
    there. Raises CliError if a list has no such index."""
    section: Any = config
    path = ""
    for part in parts[:-1]:
        if isinstance(section, dict):
            section = section.setdefault(part, {})
        else:
            section = section[_index(section, part, path)]
        path = f"{path}.{part}".lstrip(".")
        if not isinstance(section, dict | list):
            raise CliError(f"--set {'.'.join(parts)}: {path} was set to {section!r} before")
    last = parts[-1]
    return section, last if isinstance(section, dict) else _index(section, last, path)


def _index(values: list[Any], key: str, path: str) -> int:
    try:
        return place_in(values, key, path)
    except NoSuchPlace as error:
        raise CliError(f"--set {error}") from None
