"""`headrace agents`: plays the sessions of a run with a command or an environment, several at once,
until the run ends."""

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from services.cli.interrupts import interruptible
from services.cli.options import AsJson, Data, GatewayURL, Run, connect, data_folder
from services.cli.output import FINAL, CliError, err, escape, out, print_json

if TYPE_CHECKING:
    from services.cli.agent_process import Ended
    from services.cli.client import Gateway

FAILURES = 16
"""Sessions in a row that earn nothing before the command gives up."""
PATIENCE = 60.0
"""Seconds to repeat a call while the gateway or Redis is away."""
QUIET = 10.0
"""Seconds without a group after which it is said why there is none."""
KEPT = 1000
"""Outputs that stay."""


class RewardFrom(StrEnum):
    """Who says what a session has earned."""

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
    """Play the sessions of RUN, with a COMMAND for each or with an environment, until RUN ends.

    COMMAND finds OPENAI_BASE_URL and OPENAI_API_KEY in its environment, which the OpenAI client
    reads, and in HEADRACE_ROW the dataset's row as JSON. One that fails, or takes too long, earns
    no reward: its session is not trained. An environment says the reward itself
    (docs/environments.md). What each printed is in DATA/agents/RUN.
    """
    given = [bool(command), environment is not None, openenv is not None, verifiers is not None]
    if sum(given) != 1:
        raise CliError(
            "name what plays the sessions: `-- COMMAND`, --environment, --openenv or --verifiers, "
            "and one of them",
            code=2,
        )
    if command:
        player: Player = CommandPlayer(command, limit, reward)
    else:
        from services.cli.environment_player import EnvironmentPlayer, chosen

        if reward is RewardFrom.FILE:
            raise CliError("--reward file goes with a COMMAND: an environment says it", code=2)
        by_verifier = reward is RewardFrom.VERIFIER
        played_by = chosen(verifiers, openenv, environment, config, turns)
        player = EnvironmentPlayer(played_by, limit, by_verifier)
    api = connect(gateway)
    record = _patiently(lambda: api.get(f"/v1/runs/{run}"))
    if record["state"] in FINAL:
        raise CliError(
            f"run {record['id']} is over, it {record['state']}: there are no sessions to play"
        )
    players = Players(api, record["id"], player, data_folder(data).absolute())
    with interruptible(), player.serving(), ThreadPoolExecutor(parallel) as pool:
        try:
            players.play_all(pool, parallel)
        except BaseException:
            players.stop.set()
            players.release()
            raise
    ended = _patiently(lambda: api.get(f"/v1/runs/{record['id']}"))
    played, failed = players.played, players.failed
    if as_json:
        print_json({"run": ended, "sessions": played, "without_reward": failed})
    else:
        out.print(f"{played} sessions, {failed} without a reward. {ended['name']} {ended['state']}")
    if ended["state"] != "succeeded":
        raise CliError(f"run {record['id']} {ended['state']}: {ended['reason']}")


NO_TURN = (
    "it asked OPENAI_BASE_URL for nothing, with OPENAI_API_KEY as its key: a session without a "
    "turn is not trained"
)


class Player(Protocol):
    """What plays one session; several threads ask it at once."""

    def serving(self) -> AbstractContextManager[None]:
        """Around all sessions."""

    def play(
        self, group: dict[str, Any], session: dict[str, Any], stop: threading.Event
    ) -> tuple["Ended", dict[str, Any] | None]:
        """How it went, and what it has earned (None: the run's verifiers say it). Ends early when
        `stop` is set."""


class CommandPlayer:
    """A command for each session."""

    def __init__(self, command: list[str], limit: float, reward: RewardFrom) -> None:
        """Raises CliError without such a program."""
        if shutil.which(command[0]) is None:
            raise CliError(f"there is no program {command[0]!r}", code=2)
        self._command, self._limit, self._reward = command, limit, reward

    def serving(self) -> AbstractContextManager[None]:
        """As Player."""
        return nullcontext()

    def play(
        self, group: dict[str, Any], session: dict[str, Any], stop: threading.Event
    ) -> tuple["Ended", dict[str, Any] | None]:
        """As Player."""
        from services.cli import agent_process

        with tempfile.TemporaryDirectory(prefix="headrace-agent-") as folder:
            file = Path(folder) / "reward"
            environment = environment_of(os.environ, group, session, file)
            ended = agent_process.play(self._command, environment, self._limit, stop)
            return ended, agent_process.reward_of(ended, self._reward, file)


class Players:
    """Plays groups of sessions of one run."""

    def __init__(self, api: "Gateway", run: str, player: Player, data: Path) -> None:
        self._api, self._run, self._player = api, run, player
        self._folder = data / "agents" / run
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._held: dict[str, int] = {}
        """Sessions that have not ended, by their group's attempt."""
        self._said: set[str] = set()
        """Why there was no group for long; each reason is said once."""
        self.stop = threading.Event()
        """Ends all agents."""
        self.played = self.failed = 0

    def play_all(self, pool: ThreadPoolExecutor, parallel: int) -> None:
        """Play until the run takes no more. Raises CliError if nothing works."""
        playing: set[Future[None]] = set()
        while (group := self._lease()) is not None:
            self._held[group["attempt"]] = len(group["sessions"])
            playing |= {pool.submit(self._play, group, one) for one in group["sessions"]}
            # A session that waits for its turn has a lease that runs.
            while len(playing) >= parallel:
                done, playing = wait(playing, return_when=FIRST_COMPLETED)
                self._look(done)
        self._look(wait(playing).done)

    def release(self) -> None:
        """Release groups that are not done: nobody plays them, and the learner would wait for them
        until they lapse."""
        for attempt in list(self._held):
            # The command ends for another reason.
            with contextlib.suppress(CliError):
                self._api.post(f"/v1/runs/{self._run}/groups/{attempt}:release")

    def _look(self, done: set[Future[None]]) -> None:
        for one in done:
            one.result()

    def _lease(self) -> dict[str, Any] | None:
        """The next group; None when the run has ended."""
        from services.cli.client import Later

        path = f"/v1/runs/{self._run}/groups:lease"
        began = time.monotonic()
        while True:
            try:
                group: dict[str, Any] = _patiently(lambda: self._api.post(path))
                return group
            except Later as later:
                if time.monotonic() - began >= QUIET and later.message not in self._said:
                    self._said.add(later.message)
                    err.print(f"[dim]{escape(later.message)}[/]", soft_wrap=True)
                time.sleep(later.seconds)
            except CliError:
                record = _patiently(lambda: self._api.get(f"/v1/runs/{self._run}"))
                if record["state"] in (*FINAL, "cancelling"):
                    return None
                raise

    def _play(self, group: dict[str, Any], session: dict[str, Any]) -> None:
        if self.stop.is_set():
            return
        ended, reward = self._player.play(group, session, self.stop)
        if self.stop.is_set():
            return
        problem = self._report(group["attempt"], session["id"], reward)
        self._note(group, session["id"], ended, reward, problem)

    def _report(self, attempt: str, session: str, reward: dict[str, Any] | None) -> str:
        """Tell the gateway. Returns why that had no effect."""
        from services.cli.client import Away

        base, refusal = f"/v1/sessions/{session}", ""
        try:
            if reward is not None:
                try:
                    _patiently(lambda: self._api.post(f"{base}/reward", json=reward))
                except Away:
                    # The reward is good: said to be none later, it would be lost for good.
                    raise
                except CliError as error:
                    refusal = error.message
                    refused = {"reward": None, "error": refusal}
                    _patiently(lambda: self._api.post(f"{base}/reward", json=refused))
            played = _patiently(lambda: self._api.post(f"{base}/end"))
            self._ended(attempt)
        except CliError as error:
            return error.message
        # Why an agent failed says more than that it had not asked before.
        failed = reward is not None and "error" in reward
        return refusal or ("" if played["turns"] or failed else NO_TURN)

    def _ended(self, attempt: str) -> None:
        with self._lock:
            self._held[attempt] -= 1
            if not self._held[attempt]:
                del self._held[attempt]

    def _note(
        self,
        group: dict[str, Any],
        session: str,
        ended: "Ended",
        reward: dict[str, Any] | None,
        problem: str,
    ) -> None:
        failed = problem or (reward or {}).get("error", "")
        about = {
            "session": session,
            "row": group["row"],
            "exit_code": ended.exit_code,
            "seconds": round(ended.seconds, 3),
            "reward": reward,
            "problem": failed,
        }
        text = f"{json.dumps(about)}\n--- output\n{ended.output}\n--- errors\n{ended.errors}\n"
        with self._lock:
            (self._folder / f"{session}.log").write_text(text, errors="replace")
            for old in sorted(self._folder.iterdir(), key=_written_at)[:-KEPT]:
                old.unlink(missing_ok=True)
            self.played += 1
            self.failed += bool(failed)
            self._in_a_row = self._in_a_row + 1 if failed else 0
            if failed:
                err.print(f"[yellow]session {session}:[/] {escape(failed)}", soft_wrap=True)
            if self._in_a_row >= FAILURES and self._in_a_row == self.failed == self.played:
                last = ended.errors.strip().splitlines()[-1:]
                said = f" ({last[0][:300]})" if last else ""
                raise CliError(
                    f"none of the first {self.played} sessions earned anything that is trained, "
                    f"the last one: {failed}{said}. What they printed is in {self._folder}"
                )


def _written_at(file: Path) -> float:
    """0 for one that another `headrace agents` of the run has just removed."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def environment_of(
    inherited: "os._Environ[str] | dict[str, str]",
    group: dict[str, Any],
    session: dict[str, Any],
    reward_file: Path,
) -> dict[str, str]:
    """What an agent finds in its environment: no key but its session's."""
    names = ("prompt", "answer", "columns", "row", "task")
    plain = {name: value for name, value in inherited.items() if not name.startswith("HEADRACE_")}
    return plain | {
        "OPENAI_BASE_URL": session["base_url"],
        "OPENAI_API_KEY": session["key"],
        "HEADRACE_ROW": json.dumps({name: group[name] for name in names}),
        "HEADRACE_SESSION": session["id"],
        "HEADRACE_REWARD_FILE": str(reward_file),
    }


def _patiently(call: Callable[[], Any]) -> Any:
    """The result of `call`, which is repeated while the gateway or Redis is away."""
    from services.cli.client import Away

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except Away:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
