"""What a report of a chain says: its steps in one table, and each step's run below."""

from collections.abc import Sequence
from dataclasses import replace

from services.report.content import duration, headline, sections
from services.report.facts import Facts, Row
from services.report.parts import Paragraph, Part, Picture, Section, Table


def chain_sections(chain: Row, steps: Sequence[tuple[str, Facts]]) -> list[Section]:
    """The report of a chain, as the API shows it, with the facts of the steps that have a run."""
    found = [Section("Result", _result(chain, dict(steps)))]
    for name, facts in steps:
        for section in sections(facts):
            parts = [_named(part, name) for part in section.parts]
            found.append(Section(f"{name}: {section.title}", parts))
    return found


def _result(chain: Row, facts: dict[str, Facts]) -> list[Part]:
    reason = f": {chain['reason']}" if chain["reason"] else ""
    parts: list[Part] = []
    if chain.get("note"):
        parts.append(Paragraph(str(chain["note"])))
    parts.append(Paragraph(f"State of the chain: {chain['state']}{reason}."))
    rows = []
    for step in chain["steps"]:
        trained = f"{step['step']} of {step['max_steps'] or '?'}"
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
