"""An agent for chaos tests, as a process that may be killed: it leases groups, or opens sessions as
an application does. It plays each session with forks, and sends every request twice at once.
`python -m tests.chaos.agent URL KEY RUN groups|live`.

Ends with code 1 if two answers to one request differ.
"""

import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

TURNS = 5
"""Turns of each session."""
MOST_TOKENS = 6
"""Longest answer in tokens."""
PAUSE = 0.2
"""Seconds until a request without an answer is sent again."""


class Lost(Exception):
    """A session takes no calls any more."""


class Agent:
    def __init__(self, url: str, key: str, run: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        )
        self._run = run
        self._requests = ThreadPoolExecutor(32)

    def work(self) -> None:
        """Play groups until the run has ended."""
        with ThreadPoolExecutor(2) as sessions:
            while (leased := self._post(f"/v1/runs/{self._run}/groups/lease")).status_code != 409:
                if leased.status_code == 429:
                    threading.Event().wait(PAUSE)
                    continue
                group = leased.raise_for_status().json()
                list(sessions.map(lambda one, of=group: self._play(of, one), group["sessions"]))

    def work_live(self) -> None:
        """Open sessions and play them, two at a time, until the run has ended."""
        with ThreadPoolExecutor(2) as sessions:
            list(sessions.map(self._open_and_play, range(2)))

    def _open_and_play(self, number: int) -> None:
        """Sessions whose rewards come before their ends (0) or after them (1)."""
        while True:
            opening = {"name": uuid.uuid4().hex, "prompt_key": f"{number}"}
            path = f"/v1/runs/{self._run}/sessions"
            if (opened := self._post(path, opening)).status_code == 409:
                return
            again = self._post(path, opening)
            if 429 in (opened.status_code, again.status_code):
                threading.Event().wait(PAUSE)
                continue
            if again.status_code in (409, 410):
                # The run has ended meanwhile.
                continue
            base = f"/v1/sessions/{opened.raise_for_status().json()['id']}"
            if again.raise_for_status().json()["id"] != base.rpartition("/")[2]:
                print(f"two sessions of one name: {opened.text} {again.text}", flush=True)
                sys.exit(1)
            last: list[tuple[str, dict[str, Any]]] = [("reward", {"reward": 1.0}), ("end", {})]
            try:
                self._converse(base, f"{number}+9=")
                for what, body in reversed(last) if number else last:
                    self._twice(f"{base}/{what}", body)
            except Lost:
                continue

    def _play(self, group: dict[str, Any], session: dict[str, Any]) -> None:
        base = f"/v1/sessions/{session['id']}"
        try:
            self._converse(base, group["prompt"])
            self._twice(f"{base}/reward", {"reward": 1.0})
            self._twice(f"{base}/end", {})
        except Lost:
            return

    def _converse(self, base: str, prompt: str) -> None:
        """Play TURNS turns: two continue one answer, and the last starts a new conversation."""
        asked = {"role": "user", "content": prompt}
        said = [asked, self._ask(base, [asked])]
        forks = [[*said, {"role": "user", "content": text}] for text in ("1+1=", "2+2=")]
        waiting = [self._requests.submit(self._ask, base, fork) for fork in forks]
        first, _ = (one.result() for one in waiting)
        self._ask(base, [*forks[0], first, {"role": "user", "content": "3+3="}])
        self._ask(base, [{"role": "user", "content": f"{prompt}+0"}])

    def _ask(self, base: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The message that answers, which both times is the same."""
        # A real model may go on and on, and leave the next turn no room.
        asked = {"messages": messages, "max_tokens": MOST_TOKENS}
        answers = self._twice(f"{base}/v1/chat/completions", asked)
        first, second = (answer["choices"][0] for answer in answers)
        if first != second:
            print(f"two answers to one request: {first} {second}", flush=True)
            sys.exit(1)
        message: dict[str, Any] = first["message"]
        return message

    def _twice(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        sent = [self._requests.submit(self._post, path, body) for _ in range(2)]
        answers = [one.result() for one in sent]
        if any(answer.status_code == 409 for answer in answers):
            raise Lost
        return [answer.raise_for_status().json() for answer in answers]

    def _post(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """The answer, once there is one: what answers may die and come back."""
        while True:
            try:
                answer = self._http.post(path, json=body)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code < 500:
                return answer
            threading.Event().wait(PAUSE)


if __name__ == "__main__":
    *where, what = sys.argv[1:]
    playing = Agent(*where)
    playing.work_live() if what == "live" else playing.work()
