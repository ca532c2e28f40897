"""`headrace doctor`: what this machine lacks, and how to mend it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from headrace.cli.options import AsJson, Data, GatewayURL, data_folder, folder_source
from headrace.cli.output import FAILED, escape, out, print_json

if TYPE_CHECKING:
    from services.cli.host.checks import Finding

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
WIDTH = 13


def doctor(data: Data = None, as_json: AsJson = False, gateway: GatewayURL = None) -> None:
    """Check this machine, and say how to mend what is wrong.

    It looks at Python, torch, vLLM, GPUs, memory, the data folder, the disk, Redis, clocks, ports,
    the gateway and the sandbox. Nothing has to run, and nothing is changed. It exits with 1 if a
    check fails, and with 0 after mere warnings.

    Example:
    headrace doctor
    """
    from services.cli.host.checks import FAIL, WARN

    findings: list[Finding] = []
    for finding in _findings(data, gateway):
        findings.append(finding)
        if not as_json:
            _show(finding.subject, finding.level, finding.text, finding.mend)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        failed = sum(finding.level == FAIL for finding in findings)
        warned = sum(finding.level == WARN for finding in findings)
        out.print(f"\n{len(findings)} checks: {failed} failed, {warned} warned")
    if any(finding.level == FAIL for finding in findings):
        raise typer.Exit(FAILED)


def _findings(data: Data, gateway: GatewayURL) -> "Iterator[Finding]":
    """Yield the findings as they come."""
    from services.cli.host import checks
    from services.settings import Settings

    settings = Settings()
    folder = data_folder(data)
    yield from checks.versions()
    yield from checks.gpus()
    yield from checks.host()
    yield from checks.data(folder, folder_source(data))
    yield from checks.redis(_redis_url(), folder)
    yield from checks.gateway(gateway or settings.gateway_url, folder)
    yield from checks.sandbox()


def _redis_url() -> str | None:
    from headrace.variables import places

    if "HEADRACE_REDIS_URL" not in places():
        return None
    from services.settings import Settings

    return Settings().redis_url.get_secret_value()


def _show(subject: str, level: str, text: str, mend: str) -> None:
    mark = f"[{STYLES[level]}]{level:<4}[/]"
    out.print(f"{mark}  {subject:<{WIDTH}}  {escape(text)}", soft_wrap=True)
    if mend:
        out.print(f"{'':<6}{'':<{WIDTH}}  [dim]→ {escape(mend)}[/]", soft_wrap=True)
