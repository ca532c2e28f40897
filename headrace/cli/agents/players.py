"""Plays the sessions of a run with a player, several at once, and tells the gateway what each has
earned."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.cli.output import FINAL, CliError, err, escape

if TYPE_CHECKING:
    from headrace.cli.agents.command_player import Ended
    from headrace.cli.client import Gateway

FAILURES = 16
"""The command gives up if its first FAILURES sessions all end without a reward."""
PATIENCE = 60.0
"""Seconds to repeat a call while the gateway or Redis is away."""
QUIET = 10.0
"""Seconds without a group before the reason is printed."""
LOGS_KEPT = 1000
"""Number of session logs to keep; older logs are deleted."""
NO_TURN = (
    "it asked OPENAI_BASE_URL for nothing, with OPENAI_API_KEY as its key, nor ANTHROPIC_BASE_URL "
    "with ANTHROPIC_API_KEY: a session without a turn is not trained"
)


class Player(Protocol):
    """Plays one session. Several threads call it at once."""

    def serving(self) -> AbstractContextManager[None]:
        """Keep the player's resources open while the block plays sessions."""

    def play(
        self, group: dict[str, Any], session: dict[str, Any], stop: threading.Event
    ) -> tuple["Ended", dict[str, Any] | None]:
        """Play one session. Return how it ended and its reward (None: the run's verifiers reward
        it). Ends early when `stop` is set."""


class Players:
    """Plays groups of sessions of one run."""

    def __init__(self, api: "Gateway", run: str, player: Player, data: Path) -> None:
        self._api, self._run, self._player = api, run, player
        self._folder = data / "agents" / run
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        """Sessions that have not ended, by their group's attempt."""
        self._printed: set[str] = set()
        """Messages that were printed already; each is printed once."""
        self.stop = threading.Event()
        """Ends all agents."""
        self.played = self.failed = 0

    def play_all(self, pool: ThreadPoolExecutor, parallel: int) -> None:
        """Play sessions until the run takes no more. Raises CliError if nothing works."""
        playing: set[Future[None]] = set()
        while (group := self._lease()) is not None:
            self._held[group["attempt"]] = len(group["sessions"])
            playing |= {pool.submit(self._play, group, session) for session in group["sessions"]}
            # A session that waits for its turn has a lease that runs.
            while len(playing) >= parallel:
                done, playing = wait(playing, return_when=FIRST_COMPLETED)
                self._look(done)
        self._look(wait(playing).done)

    def release(self) -> None:
        """Release the unfinished groups. Otherwise the learner waits for them until their leases
        lapse."""
        for attempt in list(self._held):
            # The command ends for another reason.
            with contextlib.suppress(CliError):
                self._api.post(f"/v1/runs/{self._run}/groups/{attempt}/release")

    def _look(self, done: set[Future[None]]) -> None:
        for future in done:
            future.result()

    def _lease(self) -> dict[str, Any] | None:
        """Return the next group, or None if the run has ended."""
        from headrace.cli.client import Later

        path = f"/v1/runs/{self._run}/groups/lease"
        began = time.monotonic()
        while True:
            try:
                group: dict[str, Any] = patiently(lambda: self._api.post(path))
                return group
            except Later as later:
                if time.monotonic() - began >= QUIET and later.message not in self._printed:
                    self._printed.add(later.message)
                    err.print(f"[dim]{escape(later.message)}[/]", soft_wrap=True)
                time.sleep(later.seconds)
            except CliError:
                record = patiently(lambda: self._api.get(f"/v1/runs/{self._run}"))
                if record["state"] in (*FINAL, "cancelling"):
                    return None
                raise

    def _play(self, group: dict[str, Any], session: dict[str, Any]) -> None:
        if self.stop.is_set():
            return
        ended, reward = self._ended_and_earned(group, session)
        if self.stop.is_set():
            return
        problem, reward = self._report(group["attempt"], session["id"], ended, reward)
        self._note(group, session["id"], ended, reward, problem)

    def _ended_and_earned(
        self, group: dict[str, Any], session: dict[str, Any]
    ) -> tuple["Ended", dict[str, Any] | None]:
        """Call `Player.play`. A full disk ends the session without a reward."""
        try:
            return self._player.play(group, session, self.stop)
        except OSError as error:
            from headrace.cli.agents.command_player import Ended

            problem = f"it cannot be played here: {error}"
            return Ended(None, 0.0, "", "", problem), {"reward": None, "error": problem}

    def _report(
        self, attempt: str, session: str, ended: "Ended", reward: dict[str, Any] | None
    ) -> tuple[str, dict[str, Any] | None]:
        """Send a session's reward to the gateway. Return the reason if the gateway did not take it,
        and the reward that counts: an agent may have posted its own reward before."""
        from headrace.cli.client import Away

        base, refusal = f"/v1/sessions/{session}", ""
        try:
            if reward is not None:
                try:
                    counts = patiently(lambda: self._api.post(f"{base}/reward", json=reward))
                    is_silent = "error" in reward and not ended.problem
                    if is_silent and counts.get("reward") is not None:
                        reward = {"reward": counts["reward"]}
                except Away:
                    # The reward is good: said to be none later, it would be lost for good.
                    raise
                except CliError as error:
                    refusal = error.message
                    refused = {"reward": None, "error": refusal}
                    patiently(lambda: self._api.post(f"{base}/reward", json=refused))
            played = patiently(lambda: self._api.post(f"{base}/end"))
            self._ended(attempt)
        except CliError as error:
            return error.message, reward
        # Why an agent failed says more than that it had not asked before.
        failed = reward is not None and "error" in reward
        return refusal or ("" if played["turns"] or failed else NO_TURN), reward

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
            self._log(session, text)
            self.played += 1
            self.failed += bool(failed)
            if failed:
                err.print(f"[yellow]session {session}:[/] {escape(failed)}", soft_wrap=True)
            if self.failed == self.played >= FAILURES:
                last = ended.errors.strip().splitlines()[-1:]
                reason = f" ({last[0][:300]})" if last else ""
                raise CliError(
                    f"none of the first {self.played} sessions earned anything that is trained, "
                    f"the last one: {failed}{reason}. What they printed is in {self._folder}"
                )

    def _log(self, session: str, text: str) -> None:
        try:
            (self._folder / f"{session}.log").write_text(text, errors="replace")
            for old in sorted(self._folder.iterdir(), key=_written_at)[:-LOGS_KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:
            # Play on when the disk is full.
            if "log" not in self._printed:
                self._printed.add("log")
                message = f"what sessions print is not kept: {error}"
                err.print(f"[yellow]{escape(message)}[/]", soft_wrap=True)


def _written_at(file: Path) -> float:
    """Return a file's time of modification; 0 if another `headrace agents` has just deleted the
    file."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def patiently(call: Callable[[], Any]) -> Any:
    """Return the result of `call`. Retries while the gateway or Redis is away."""
    from headrace.cli.client import Away

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except Away:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
