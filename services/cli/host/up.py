"""`headrace up` and `headrace demo`: what starts an installation on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import AsJson, Data, data_folder
from headrace.cli.output import err, refusal
from headrace.variables import places

FLAGS = {
    "HEADRACE_RANKS": "--ranks",
    "HEADRACE_ROLLOUTS": "--rollouts",
    "HEADRACE_REDIS_PORT": "--redis-port",
}
"""The flags of `headrace up` whose variables it does not read: they are another program's."""


def up(
    data: Data = None,
    host: Annotated[
        str | None,
        typer.Option(help="Where the gateway listens. Default: HEADRACE_HOST, or 127.0.0.1."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The gateway's port; 0: any free one. Default: HEADRACE_PORT, or 8000."),
    ] = None,
    reward_port: Annotated[int, typer.Option(help="The reward service's port.")] = 8002,
    redis_port: Annotated[
        int | None,
        typer.Option(
            help="For workers on other hosts: Redis listens on this port of --host, too, with a "
            "password, and so does the reward service (docs/operate.md)."
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this Redis, and start none. Default: HEADRACE_REDIS_URL, if it is set.",
        ),
    ] = None,
    allow_unsafe_redis: Annotated[
        bool,
        typer.Option(
            "--allow-unsafe-redis",
            help="Accept a Redis that may lose acknowledged work (docs/operate.md says when).",
        ),
    ] = False,
    rollouts: Annotated[
        int, typer.Option(help="Rollout workers, each on cores or GPUs of its own.", min=0)
    ] = 1,
    serving: Annotated[
        int,
        typer.Option(
            help="Further workers that only answer calls of finished runs, also while a run "
            "trains (docs/policy.md).",
            min=0,
        ),
    ] = 0,
    ranks: Annotated[int, typer.Option(help="Learner ranks.", min=1)] = 1,
    pool: Annotated[
        str | None,
        typer.Option(help="The pool of learner and workers. Default: HEADRACE_POOL, or `default`."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTS", help="Start only these, e.g. gateway,reward,redis."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="PARTS", help="Start all but these, e.g. learner,rollout."),
    ] = None,
) -> None:
    """Start everything on this machine; Ctrl-C ends it.

    The parts are redis, gateway, reward, rollout and learner.

    Example:
    headrace up
    headrace up --data headrace-data --rollouts 2
    """
    from services.gateway.settings import GatewaySettings
    from services.launch import (
        ALL_PARTS,
        LaunchError,
        UpOptions,
        configured_redis_url,
        parts_named,
        run,
    )
    from services.settings import EXIT_SETTINGS

    settings = GatewaySettings()
    for variable in sorted(FLAGS.keys() & places().keys()):
        unread = f"headrace up does not read {variable}: use {FLAGS[variable]}"
        err.print(f"[yellow]warning:[/] {unread}", soft_wrap=True)
    try:
        parts = parts_named(",".join(only)) if only else ALL_PARTS
        parts -= parts_named(",".join(without or []))
    except LaunchError as error:
        raise refusal(error, EXIT_SETTINGS) from None
    try:
        options = UpOptions(
            data=data_folder(data),
            host=settings.host if host is None else host,
            port=settings.port if port is None else port,
            reward_port=reward_port,
            redis_port=redis_port,
            redis_url=redis_url or configured_redis_url(),
            allow_unsafe_redis=allow_unsafe_redis or settings.allow_unsafe_redis,
            rollouts=rollouts,
            serving=serving,
            ranks=ranks,
            pool=settings.pool if pool is None else pool,
            parts=parts,
        )
        code = run(options)
    except LaunchError as error:
        raise refusal(error) from None
    raise typer.Exit(code)


def demo(
    data: Annotated[
        Path | None, typer.Option(help="The data folder. Default: `demo` in HEADRACE_DATA.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A few steps: everything is tried, nothing is learned."),
    ] = False,
    agent: Annotated[
        bool,
        typer.Option(
            "--agent", help="Train an agent that has a tool: a program with OpenAI's client."
        ),
    ] = False,
    gateway: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Start nothing: have the installation of this gateway do it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """See a policy learn, from nothing, in minutes on two cores.

    The last line on stdout is one JSON object.

    Example:
    headrace demo --quick
    """
    from services.cli.host.demo import run as run_demo

    raise typer.Exit(run_demo(data, quick, as_json, gateway, agent))
