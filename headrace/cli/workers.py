"""`headrace workers`: rollout workers and what they do."""

from typing import Any

from headrace.cli.options import AsJson, GatewayURL, connect
from headrace.cli.output import ago, escape, print_json, table, worker_state


def workers(as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """List rollout workers and what they do.

    Example:
    headrace workers -o json
    """
    records = list(connect(gateway).pages("/v1/workers", "workers"))
    if as_json:
        print_json(records)
        return
    table(
        ("ID", "HOST", "POOL", "STATE", "RUN", "VERSION", "IN FLIGHT", "TOKENS/S", "SEEN", "ERROR"),
        [
            (
                escape(record["id"]),
                escape(record["host"]),
                record["pool"],
                worker_state(record["state"]),
                record["run"] or served(record),
                "" if record["version"] is None else str(record["version"]),
                str(record["groups_in_flight"]),
                f"{record['tokens_per_second']:,.0f}",
                ago(record["heartbeat"]),
                escape(record["error"]),
            )
            for record in records
        ],
        "no workers: `headrace up` starts one; more with `python -m rollout`",
    )


def served(record: dict[str, Any]) -> str:
    """Return the models of finished runs that a worker serves or loads."""
    models, loading = record.get("models") or [], record.get("loading")
    return ", ".join([*models, *([f"{loading} (loading)"] if loading else [])])
