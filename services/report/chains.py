"""What a report of a chain says: its steps in one table, each step's run below, and how to repeat
all of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import yaml

from services.contracts.chains import with_paths
from services.report.content import REPEAT, duration, headline, sections
from services.report.facts import Facts, Row
from services.report.parts import Code, Paragraph, Part, Picture, Section, Table


def chain_sections(chain: Row, steps: Sequence[tuple[str, Facts]]) -> list[Section]:
    """The report of a chain, as the API shows it, with the facts of the steps that have a run."""
    found = [Section("Result", _result(chain, dict(steps)))]
    # A step that never began has a config that no run shows.
    whole = len(steps) == len(chain["steps"])
    for name, facts in steps:
        for section in sections(facts):
            if whole and section.title == REPEAT:
                continue
            parts = [_named(part, name) for part in section.parts]
            found.append(Section(f"{name}: {section.title}", parts))
    return [*found, Section(REPEAT, _repeat(chain, dict(steps)))] if whole else found


def _repeat(chain: Row, facts: dict[str, Facts]) -> list[Part]:
    steps: list[dict[str, Any]] = []
    for step in chain["steps"]:
        config = dict(facts[step["name"]].record["config"])
        steps.append({"name": step["name"], "config": with_paths(config, step["models"])})
    told = {key: chain[key] for key in ("name", "note") if chain.get(key)}
    return [
        Paragraph("Save this as chain.yaml and submit it with `headrace submit ./chain.yaml`."),
        Code(yaml.safe_dump({**told, "steps": steps}, sort_keys=False, allow_unicode=True)),
    ]


def _result(chain: Row, facts: dict[str, Facts]) -> list[Part]:
    reason = f": {chain['reason']}" if chain["reason"] else ""
    parts: list[Part] = []
    if chain.get("note"):
        parts.append(Paragraph(str(chain["note"])))
    parts.append(Paragraph(f"State of the chain: {chain['state']}{reason}."))
    rows = []
    for step in chain["steps"]:
        # An evaluation alone trains nothing.
        trained = "–" if step["max_steps"] == 0 else f"{step['step']} of {step['max_steps'] or '?'}"
        one = facts.get(step["name"])
        lasted = duration(one.seconds) if one and one.seconds else "–"
        about = [step["name"], step["run"] or "–", step["kind"], step["state"], trained, lasted]
        rows.append([*about, headline(one) if one else "–"])
    header = ["step", "run", "kind", "state", "trained", "time", "result: first → last"]
    parts.append(Table(header, rows))
    return parts


def _named(part: Part, step: str) -> Part:
    """A picture's file is named after its step."""
    return replace(part, name=f"{step}-{part.name}") if isinstance(part, Picture) else part
