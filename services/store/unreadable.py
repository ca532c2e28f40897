"""Reads records that may be damaged: returns what can be read, and logs the rest.

Another version, another program or a damaged file may have left anything in Redis. A damaged record
must affect only itself: lists show its readable fields, and `damage` names the others.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from redis.exceptions import ResponseError

from services.contracts.config.parsing.type_tags import models_of
from services.contracts.records import DatasetRecord, RunRecord, RunState, RunSummary
from services.contracts.schema import SchemaMismatch
from services.contracts.strict_json import NotJSON, decode
from services.runtime.logs import get_logger
from services.store.errors import Gone, Unreadable

log = get_logger(__name__)

R = TypeVar("R", bound=RunSummary)
M = TypeVar("M", bound=BaseModel)

JSON_FIELDS = frozenset(
    name
    for name, field in RunRecord.model_fields.items()
    if get_origin(field.annotation) in (dict, list) or models_of(field.annotation)
)
"""Fields of a run that Redis keeps as JSON, as `text_of` (runs/new_run.py) writes them."""
MISFITS = ("WRONGTYPE", "user_script", "not an integer", "not a valid float", "Invalid stream ID")
"""Parts of Redis' errors about a value of another type than a call or a script expects."""
STATES = ("OOM", "READONLY", "MISCONF", "CLUSTERDOWN", "non local key", "LOADING")
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
REPORTED = 1000

_reported: dict[tuple[str, str], None] = {}


def report(what: str, reason: str) -> None:
    """Log once that `what` cannot be read."""
    if (what, reason) in _reported:
        return
    if len(_reported) >= REPORTED:
        del _reported[next(iter(_reported))]
    _reported[what, reason] = None
    log.error("a record cannot be read", record=what, reason=reason)


def as_text(name: bytes) -> str:
    """Decode a name that Redis lists. A name in another encoding than UTF-8 is foreign, and leads
    to nothing."""
    return name.decode(errors="backslashreplace")


def is_damage(error: Exception) -> bool:
    """Return whether Redis refused a call because of a key's value, not because of its own
    state."""
    message = str(error)
    # Subclasses are states of Redis; a script's error may name a state only in its text.
    return (
        type(error) is ResponseError
        and any(words in message for words in MISFITS)
        and not any(words in message for words in STATES)
    )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise Unreadable if the block cannot make sense of what Redis holds."""
    try:
        yield
    except (SchemaMismatch, Unreadable, Gone):
        raise
    except ResponseError as error:
        if not is_damage(error):
            raise
        raise Unreadable(what, str(error)) from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Unreadable(what, repr(error)) from error


def read_json(model: type[M], what: str, text: bytes | None) -> M | None:
    """Parse a record from its JSON. A record that cannot be read is logged and becomes None."""
    try:
        return model.model_validate(decode(text or b""))
    except (NotJSON, ValidationError) as error:
        report(what, _brief(error))
        return None


def read_run(model: type[R], id: str, fields: Mapping[str, bytes | None] | Exception) -> R:
    """Parse a run from the fields of its hash, or from Redis' error for them. Fields that cannot be
    read get defaults, and `damage` names them."""
    values: dict[str, Any] = {}
    damage: dict[str, str] = {}
    if not RUN_ID.fullmatch(id):
        damage["id"] = "is none that a run has"
    if isinstance(fields, Exception):
        damage["the whole"] = str(fields)
        fields = {}
    for name in model.model_fields:
        if (raw := fields.get(name)) is None:
            continue
        try:
            values[name] = decode(raw) if name in JSON_FIELDS else raw.decode()
            if name == "config":
                _check_sections(values[name])
        except ValueError as error:
            values.pop(name, None)
            damage[name] = str(error)
    stand_ins = {"name": id, "pool": "", "kind": "rl", "state": RunState.QUEUED, "created": 0.0}
    record, wrong = _salvaged(model, {**stand_ins, "config": {}}, {**values, "id": id})
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    missing = {name: "is missing" for name in required if fields.get(name) is None}
    if damage := {**missing, **wrong, **damage}:
        record.damage = _described(f"run {id}", damage)
        record.reason = f"{record.damage}: it cannot be trained. Cancel it and delete it by its id"
    return record


def _check_sections(config: Any) -> None:
    """Raise ValueError unless each section of a config is a mapping, or left out."""
    for name in ("model", "data", "algorithm", "rollout", "evaluation"):
        if not isinstance(config, dict) or not isinstance(config.get(name), dict | None):
            raise ValueError(f"{name} is no mapping")


def read_dataset(id: str, text: bytes) -> DatasetRecord:
    """Parse a dataset from its JSON. A record that cannot be read becomes an empty dataset with
    `damage`."""
    try:
        value = decode(text)
        values = value if isinstance(value, dict) else {}
        damage = {} if isinstance(value, dict) else {"the whole": "is no object"}
    except NotJSON as error:
        values, damage = {}, {"the whole": str(error)}
    stand_ins = {"name": id, "rows": 0, "created": 0.0, "segments": []}
    missing = {name: "is missing" for name in stand_ins if name not in values}
    record, wrong = _salvaged(DatasetRecord, stand_ins, {**values, "id": id})
    if damage := damage or {**missing, **wrong}:
        record.damage = _described(f"dataset {id}", damage)
        record.rows, record.segments = 0, []
    return record


def _described(what: str, damage: Mapping[str, str]) -> str:
    """Describe the problems of a record's fields, and log them once."""
    listed = "; ".join(f"{name}: {problem}" for name, problem in damage.items())
    sentence = f"the record of {what} cannot be read ({listed[:500]})"
    report(what, sentence)
    return sentence


def _salvaged(
    model: type[M], stand_ins: Mapping[str, Any], values: dict[str, Any]
) -> tuple[M, dict[str, str]]:
    """Make a record from the `values` that its model accepts. Returns it, and the errors of the
    others."""
    wrong: dict[str, str] = {}
    while True:
        try:
            return model.model_validate({**stand_ins, **values}), wrong
        except ValidationError as error:
            invalid = {str(item["loc"][0]): str(item["msg"]) for item in error.errors()}
            if not invalid.keys() & values.keys():
                raise
            wrong |= invalid
            values = {name: value for name, value in values.items() if name not in invalid}


def _brief(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5]
    )
