"""Every refusal of a run config names ways out, and each way out leads to an accepted config.

A way out that leads to the next refusal costs its user a second try, and shows that two checks
contradict each other.
"""

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from pydantic import ValidationError

import services.contracts.config
from services.contracts.config import ConfigError, parse_config
from tests.unit.contracts.refused_parts import OUT, Way
from tests.unit.contracts.ways_out import REFUSED


def changed(raw: dict[str, Any], way: Way) -> dict[str, Any]:
    """`raw` with the changes of `way`."""
    found: Any = copy.deepcopy(raw)
    for path, value in way.items():
        *sections, last = path.split(".")
        place = found
        for name in sections:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if value is OUT:
            place.pop(last, None)
        elif isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    return found


@pytest.mark.parametrize(("raw", "ways"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_each_way_out_that_a_refusal_names_is_accepted(
    raw: dict[str, Any], ways: list[Way]
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(raw)
    said = str(refused.value)
    for way in ways:
        for path in way:
            assert path.removesuffix(".type").rpartition(".")[2] in said, said
        parse_config(changed(raw, way))


def raised_at(error: BaseException | None) -> Iterator[tuple[str, int]]:
    """File and line of each call in the traceback of `error` and of what led to it."""
    while error is not None:
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
            trace = trace.tb_next
        error = error.__context__


def refusals() -> Iterator[tuple[str, int]]:
    """File and line of each refusal in the package of run configs."""
    for file in Path(services.contracts.config.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            raised = isinstance(node, ast.Raise)
            call = node.exc if isinstance(node, ast.Raise) else node
            name = call.func if isinstance(call, ast.Call) else None
            if isinstance(name, ast.Name) and name.id == ("ValueError" if raised else "refuse_if"):
                yield str(file), name.lineno


def test_every_refusal_has_its_ways_out_here() -> None:
    reached: set[tuple[str, int]] = set()
    for raw, _ in REFUSED:
        with pytest.raises(ConfigError) as refused:
            parse_config(raw)
        cause = refused.value.__context__
        assert isinstance(cause, ValidationError)
        for detail in cause.errors():
            reached.update(raised_at(detail.get("ctx", {}).get("error")))
    # A refusal of a mixture's dataset is raised again with the dataset's name.
    again = {place for place in refusals() if Path(place[0]).name == "run.py"}
    missing = sorted({*refusals()} - reached - again)
    assert not missing, f"add their configs and ways out to ways_out.py: {missing}"
