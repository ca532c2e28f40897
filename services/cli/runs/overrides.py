"""`--set KEY=VALUE`: keys of a config, overridden on the command line."""

from typing import Annotated, Any

import typer

from services.cli.output import CliError

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, e.g. optimizer.lr=1e-6 or rewards.0.weight=2. Repeat.",
    ),
]


def overrides_from(settings: list[str]) -> dict[str, Any]:
    """`["a.b=1"]` as {"a": {"b": 1}}; values are YAML."""
    result: dict[str, Any] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        parts = key.strip().split(".")
        if not separator or not all(parts):
            raise CliError(f"--set {setting} is not KEY=VALUE, like optimizer.lr=1e-6")
        value = set_value(key, text)
        section, last = _place_of(parts, result)
        section[last] = value
    return result


def set_value(key: str, text: str) -> Any:
    """The YAML value of `--set KEY=TEXT`; 1e-6 is a number (YAML 1.1 has it as text). Raises
    CliError, also for a mapping that has a key twice."""
    import yaml

    from recipes import load_yaml

    try:
        return _number(load_yaml(text))
    except yaml.YAMLError as error:
        reason = f" ({problem})" if (problem := getattr(error, "problem", None)) else ""
        raise CliError(
            f"--set {key}: {text!r} is not a YAML value{reason}; quote it twice"
        ) from None


def _place_of(parts: list[str], config: dict[str, Any]) -> tuple[Any, str | int]:
    """The mapping or list in `config` that the key belongs into, and its last part or index there.
    Raises CliError for a place that a list does not have."""
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
    from recipes import place_in
    from services.contracts.config import ConfigError

    try:
        return place_in(values, key, path)
    except ConfigError as error:
        raise CliError(f"--set {error}") from None


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() else value
        except ValueError:
            return value
    return value
