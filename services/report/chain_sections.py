"""The sections of a chain's report: a table of its steps, the run of each step, and how to repeat
the chain."""

from collections.abc import Sequence
from typing import Any

import yaml

from services.contracts.chains import with_paths
from services.report.facts import Facts, Row
from services.report.parts import Code, Paragraph, Part, ReportSection, Table
from services.report.run_sections import REPEAT, duration, headline, sections


def chain_sections(chain: Row, steps: Sequence[tuple[str, Facts]]) -> list[ReportSection]:
    """Make the sections of a chain. `steps`: the facts of each step that has a run."""
    made = [ReportSection("", _result(chain, dict(steps)))]
    # The config of a step is in its run. Without all runs the chain's config is incomplete.
    whole = len(steps) == len(chain["steps"])
    for name, facts in steps:
        title = f"Step {name}: {facts.title}"
        summary, *others = sections(facts)
        made.append(ReportSection(title, summary.parts, "step"))
        made += [section for section in others if not (whole and section.title == REPEAT)]
    return [*made, ReportSection(REPEAT, _repeat(chain, dict(steps)))] if whole else made


def _repeat(chain: Row, facts: dict[str, Facts]) -> list[Part]:
    steps: list[dict[str, Any]] = []
    for step in chain["steps"]:
        config = dict(facts[step["name"]].record["config"])
        steps.append({"name": step["name"], "config": with_paths(config, step["models"])})
    head = {key: chain[key] for key in ("name", "note") if chain.get(key)}
    return [
        Paragraph("Save this as chain.yaml and submit it with `headrace submit ./chain.yaml`."),
        Code(
            yaml.safe_dump({**head, "steps": steps}, sort_keys=False, allow_unicode=True),
            "chain.yaml",
        ),
    ]


def _result(chain: Row, facts: dict[str, Facts]) -> list[Part]:
    reason = f": {chain['reason']}" if chain["reason"] else ""
    parts: list[Part] = []
    if chain.get("note"):
        parts.append(Paragraph(str(chain["note"])))
    parts.append(Paragraph(f"State of the chain: {chain['state']}{reason}."))
    rows = []
    for step in chain["steps"]:
        # A step that only evaluates trains nothing.
        trained = "–" if step["max_steps"] == 0 else f"{step['step']} of {step['max_steps'] or '?'}"
        of_run = facts.get(step["name"])
        lasted = duration(of_run.seconds) if of_run and of_run.seconds else "–"
        about = [step["name"], step["run"] or "–", step["kind"], step["state"], trained, lasted]
        rows.append([*about, " ".join(headline(of_run)[:2]) if of_run else "–"])
    header = ["step", "run", "kind", "state", "trained", "time", "result: first → last"]
    parts.append(Table(header, rows))
    return parts
