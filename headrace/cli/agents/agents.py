"""`headrace agents`: plays the sessions of a run with a command or an environment, several at once,
until the run ends."""

from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.agents.players import Player, Players, patiently
from headrace.cli.interrupts import interruptible
from headrace.cli.options import AsJson, Data, GatewayURL, Run, connect, data_folder
from headrace.cli.output import FINAL, CliError, out, print_json
from headrace.cli.server_part import server_part
from headrace.wording import counted


class RewardFrom(StrEnum):
    """The source of a session's reward."""

    LAST_LINE = "last-line"
    FILE = "file"
    VERIFIER = "verifier"


def agents(
    run: Run,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND]", help="What plays one session.")
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Play with a server that has reset and step."),
    ] = None,
    openenv: Annotated[
        str | None, typer.Option(metavar="URL", help="Play with an OpenEnv server.")
    ] = None,
    verifiers: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Play with an environment of the library verifiers."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--environment-config", metavar="FILE", help="With --verifiers: its TOML or JSON."
        ),
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="Of an environment: answers, at most.")] = 32,
    parallel: Annotated[int, typer.Option(min=1, max=1024, help="Sessions at once.")] = 8,
    limit: Annotated[
        float, typer.Option("--time-limit", min=0.1, help="Seconds for one session.")
    ] = 600.0,
    reward: Annotated[
        RewardFrom,
        typer.Option(
            help="last-line: of what the command prints, a number or JSON. file: the same in the "
            "file that HEADRACE_REWARD_FILE names. verifier: the run's verifiers read the last "
            "answer."
        ),
    ] = RewardFrom.LAST_LINE,
    data: Data = None,
    as_json: AsJson = False,
    gateway: GatewayURL = None,
) -> None:
    """Play the sessions of RUN, until RUN ends.

    A COMMAND plays each, or an environment. COMMAND finds OPENAI_BASE_URL and OPENAI_API_KEY in its
    environment, which OpenAI's client reads, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, and in
    HEADRACE_ROW the dataset's row as JSON. A session whose COMMAND fails or takes too long has no
    reward and is skipped by training. An environment computes the reward itself
    (docs/environments.md). DATA/agents/RUN holds the output of each session.

    Example:
    headrace agents RUN -- python my_agent.py
    headrace agents RUN --verifiers NAME
    """
    given = [bool(command), environment is not None, openenv is not None, verifiers is not None]
    if sum(given) != 1:
        raise CliError(
            "name what plays the sessions: `-- COMMAND`, --environment, --openenv or --verifiers, "
            "and one of them",
            code=2,
        )
    if command:
        from headrace.cli.agents.command_player import CommandPlayer

        player: Player = CommandPlayer(command, limit, reward)
    else:
        if reward is RewardFrom.FILE:
            raise CliError("--reward file goes with a COMMAND: an environment says it", code=2)
        by_verifier = reward is RewardFrom.VERIFIER
        environments = server_part("agents.environment_player", "playing an environment")
        played_by = environments.chosen(verifiers, openenv, environment, config, turns)
        player = environments.EnvironmentPlayer(played_by, limit, by_verifier)
    api = connect(gateway, data)
    record = patiently(lambda: api.get(f"/v1/runs/{run}"))
    if record["state"] in FINAL:
        raise CliError(
            f"run {record['id']} is over ({record['state']}): there are no sessions to play"
        )
    players = Players(api, record["id"], player, data_folder(data).absolute())
    with interruptible(), player.serving(), ThreadPoolExecutor(parallel) as pool:
        try:
            players.play_all(pool, parallel)
        except BaseException:
            players.stop.set()
            players.release()
            raise
    ended = patiently(lambda: api.get(f"/v1/runs/{record['id']}"))
    played, failed = players.played, players.failed
    if as_json:
        print_json({"run": ended, "sessions": played, "without_reward": failed})
    else:
        sessions = f"{counted(played, 'session')}, {failed} without a reward"
        out.print(f"{sessions}. {ended['name']} {ended['state']}")
    if ended["state"] != "succeeded":
        raise CliError(f"run {record['id']} {ended['state']}: {ended['reason']}")
