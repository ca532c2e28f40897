"""Values that are typed on a command line, read as YAML."""

import json
from typing import Any

from headrace.cli.output import CliError


def set_value(key: str, text: str) -> Any:
    """Parse the text of `--set KEY=TEXT` as YAML. 1e-6 is a number here, although YAML 1.1 reads it
    as text. Raises CliError, also for a mapping with a repeated key, and for a comment."""
    # Most commands read no YAML, and start without its parser.
    import yaml

    from headrace.documents import load_yaml

    try:
        value = _number(load_yaml(text))
    except yaml.YAMLError as error:
        reason = f" ({problem})" if (problem := getattr(error, "problem", None)) else ""
        raise CliError(
            f"--set {key}: {text!r} is not a YAML value{reason}; quote it twice"
        ) from None
    if text.count("#") > repr(value).count("#"):
        raise CliError(
            f"--set {key}: {text!r} is a YAML value, in which # begins a comment that would be "
            f"lost; quote it twice: --set '{key}=\"…\"'"
        )
    return value


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() else value
        except ValueError:
            return value
    return value


def as_setting(key: str, value: Any) -> str:
    """Return the argument of `--set` that gives `key` this value, before quoting for a shell."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"{key}={shown}"
