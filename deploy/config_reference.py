"""docs/config.md, from the models that read the configuration: `python -m deploy.config_reference`.

Nothing is written by hand that a model knows: keys, types, defaults, limits and sentences are
those that decide. Prints; never writes a file. A unit test compares the file with what this prints.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from learner.settings import LearnerSettings
from reward.settings import RewardSettings
from rollout.settings import RolloutSettings
from services.contracts.config import RLConfig, SFTConfig
from services.contracts.config.parsing.described import kind_of, limits_of
from services.contracts.config.parsing.type_tags import (
    TAGS,
    fields_of,
    models_of,
    tag_name,
    tags_of,
)
from services.gateway.settings import GatewaySettings
from services.settings import Settings

RUN = """\
# Configuration

Made from the code by `python -m deploy.config_reference > docs/config.md`; do not edit it here.

The [run config](#the-run-config) describes one run: a recipe, with overrides laid over it
(`headrace submit RECIPE --set optimizer.lr=1e-5`, or `config` in `POST /v1/runs`). The
[settings](#settings) describe an installation: each process has its own.

## The run config

A config is of type `rl` (reinforcement learning; the default) or `sft` (supervised). A
submission is refused for an unknown key, with the nearest one that exists, and for a combination
that cannot work, with the way out. If a section is one of several kinds, `type` (for a model:
`source`) names the kind; without it, it is the default kind, unless the section has a key that only
other kinds have. An override that chooses another kind replaces the whole section; everything else
merges key by key. A list is replaced as a whole, or changed at single places, counted from 0:
`--set rewards.0.weight=2`.

Dotted keys below are those of `--set`; in YAML each dot is a level. A key whose default is
*required* must be given.
"""
SETTINGS = """
## Settings

Each is a flag (`--redis-url`) of the process, an environment variable (`HEADRACE_REDIS_URL`) and a
line of the file `.env` in the folder where the process starts; flags win over the environment, the
environment over the file. `headrace` itself reads the variables. `headrace up` has flags of its own
(`headrace up --help`), and sets `HEADRACE_REDIS_URL`, `HEADRACE_DATA`, `HEADRACE_GATEWAY_URL`,
`HEADRACE_REWARD_URL` and `HEADRACE_POOL` for what it starts. Each process and each command warns of
a `HEADRACE_…` variable that nothing reads, with the nearest name.

The gateway and the reward service have settings of the same name (`HEADRACE_HOST`, `HEADRACE_PORT`,
`HEADRACE_BODY_LIMIT`): if they share an environment, use flags for these.
"""
PROCESSES = (
    (Settings, "Every process"),
    (GatewaySettings, "The gateway (`python -m services.gateway`)"),
    (RolloutSettings, "A rollout worker (`python -m rollout`)"),
    (LearnerSettings, "The learner (`python -m learner`)"),
    (RewardSettings, "The reward service (`python -m reward`)"),
)


def reference() -> str:
    """The whole of docs/config.md."""
    parts = [RUN]
    for model, kind in ((RLConfig, "rl"), (SFTConfig, "sft")):
        parts.append(f"\n## `type: {kind}`\n\n{_sentence(model.__doc__)}\n")
        parts += _section(model, "", 3)
    parts.append(SETTINGS)
    for settings, heading in PROCESSES:
        shared = set() if settings is Settings else set(Settings.model_fields)
        rows = [
            (f"`HEADRACE_{name.upper()}`", f"`--{name.replace('_', '-')}`", *_facts(name, field))
            for name, field in settings.model_fields.items()
            if name not in shared
        ]
        parts.append(f"\n### {heading}\n\n" + _table(("Variable", "Flag"), rows))
    return "".join(parts)


def _section(model: type[BaseModel], path: str, depth: int) -> Iterator[str]:
    """The keys of `model` at `path`, then its sections, one heading each. A tag without a
    sentence says which kind of section this is; the heading does that."""
    inner = {name: f for name, f in fields_of(model).items() if models_of(f.annotation)}
    rows = [
        (f"`{path}{name}`", *_facts(path + name, field))
        for name, field in fields_of(model).items()
        if name not in inner and not (name in TAGS and field.description is None)
    ]
    if rows:
        yield "\n" + _table(("Key",), rows)
    for name, field in inner.items():
        yield from _inner(path + name, field, depth)


def _inner(path: str, field: FieldInfo, depth: int) -> Iterator[str]:
    listed = get_origin(field.annotation) is list
    yield f"\n{'#' * depth} `{path}`\n\n{_described(path, field)}"
    yield " Required." if field.is_required() else ""
    yield " Left out by default." if field.default is None else ""
    limits = limits_of(field)
    yield f" A list{f', {limits},' if limits else ''} of:\n" if listed else "\n"
    members = models_of(field.annotation)
    if len(members) == 1:
        yield from _section(members[0], f"{path}[]." if listed else f"{path}.", depth + 1)
        return
    for member in members:
        key = f"`{tag_name(member)}: {'` or `'.join(tags_of(member))}`"
        has_default = not member.model_fields[tag_name(member)].is_required()
        default = has_default if field.is_required() else isinstance(field.default, member)
        usual = " (the default)" if default else ""
        yield f"\n**{key}**{usual}: {_sentence(member.__doc__)}\n"
        yield from _section(member, f"{path}.", depth + 1)


def _facts(path: str, field: FieldInfo) -> tuple[str, str, str]:
    kind = kind_of(field)
    if field.is_required():
        shown = "*required*"
    else:
        shown = f"`{_shown(field.get_default(call_default_factory=True))}`"
    return kind, shown, _described(path, field)


def _table(first: tuple[str, ...], rows: Any) -> str:
    head = (*first, "Type", "Default", "Meaning")
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _described(path: str, field: FieldInfo) -> str:
    if not field.description:
        raise ValueError(f"{path} has no description: put a sentence under the field")
    return _sentence(field.description)


def _sentence(text: str | None) -> str:
    if not text:
        raise ValueError("a section or a rule has no docstring: give it one")
    return " ".join(text.split()).replace("|", "\\|")


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    shown = str(value) if isinstance(value, Path | str) else json.dumps(value)
    return shown.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
