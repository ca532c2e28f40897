"""`headrace demo`: a policy that learns, from nothing, through the REST API, as a user would.

The task is two-digit sums that carry. The examples that the model is supervised on forget the
carry two times out of three, so it answers some questions; reinforcement learning then has the
right answers to find among its samples. Held-out sums appear nowhere else.
"""

import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.client import Gateway
from headrace.cli.interrupts import interruptible
from headrace.cli.output import INTERRUPTED, CliError, err, refusal
from headrace.cli.runs.chains import watch_chain
from headrace.commands import exported, pasted
from headrace.wording import counted
from services.cli.host import demo_agents
from services.launch import LaunchError, Stack, UpOptions
from services.runtime.api_key import API_KEY
from services.settings import Settings

HELD_OUT = 200
FORGET_CARRY = 0.65
"""Share of the carrying examples whose answer lacks the carry."""
STEPS = (("demo_sft", 20), ("demo_grpo", 4))
"""Steps of each recipe with `--quick`: too few to learn, enough to see everything work."""
LAST = 3
"""Steps whose mean reward the agent's demo tells at its end."""
FEW_STEPS = "These are a few steps, to see that everything works: too few to learn the task."


def carries(a: int, b: int) -> bool:
    """Whether the units of a + b carry."""
    return a % 10 + b % 10 >= 10


def sums(seed: int = 0) -> dict[str, list[dict[str, str]]]:
    """Return the rows of the datasets `demo-examples`, `demo-train` and `demo-test`."""
    chance = random.Random(seed)
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    carrying = [pair for pair in pairs if carries(*pair)]
    chance.shuffle(carrying)
    test, train = carrying[:HELD_OUT], carrying[HELD_OUT:]
    held_out = set(test)

    def row(a: int, b: int, answer: int) -> dict[str, str]:
        return {"prompt": f"{a}+{b}", "answer": str(answer)}

    examples = [
        row(a, b, a + b - 10 * (carries(a, b) and chance.random() < FORGET_CARRY))
        for a, b in pairs
        if (a, b) not in held_out
    ]
    return {
        "demo-examples": examples,
        "demo-train": [row(a, b, a + b) for a, b in train],
        "demo-test": [row(a, b, a + b) for a, b in test],
    }


def upload_sums(api: Gateway, agent: bool = False) -> None:
    """Upload the datasets of `sums`. For an `agent`, also upload the datasets `demo-agent-…`."""
    datasets: dict[str, list[Any]] = {**sums()}
    if agent:
        datasets["demo-agent-examples"] = demo_agents.conversations(datasets["demo-examples"])
        datasets["demo-agent-train"] = demo_agents.questions(datasets["demo-train"])
    for name, rows in datasets.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        api.post("/v1/datasets", files={"file": (f"{name}.jsonl", text)}, data={"name": name})


def installation(data: Path | None) -> UpOptions:
    """Return the options of the `headrace up` that the demo starts. `data` defaults to `demo` in
    the data folder."""
    return UpOptions(data=data or Settings().data / "demo", port=0, reward_port=0)


@dataclass(frozen=True)
class Options:
    """The options of `headrace demo`."""

    quick: bool
    """A few steps."""
    as_json: bool
    agent: bool
    """Train an agent with a tool."""


def run(
    data: Path | None, quick: bool, as_json: bool, gateway: str | None = None, agent: bool = False
) -> int:
    """Start everything, train (`quick`: for a few steps), report. The last line printed is one
    JSON object. The exit code is 0 even if the policy has not learned. With `gateway` the demo
    starts nothing and uses that installation.

    Ctrl-C (or SIGTERM, SIGHUP), at any moment, ends everything that was started: exit code 130.
    """
    options = Options(quick, as_json, agent)
    if agent:
        demo_agents.check_client()
    up = installation(data)
    if gateway is not None:
        playing = demo_agents.Agents(up.data)
        print(json.dumps(_learn(Gateway(gateway, playing.check), options, playing)), flush=True)
        return 0
    try:
        with interruptible():
            verdict = _in_a_stack(up, options)
    except LaunchError as error:
        raise refusal(error) from None
    except KeyboardInterrupt:
        err.print("interrupted: everything that the demo had started has ended")
        return INTERRUPTED
    print(json.dumps(verdict), flush=True)
    return 0


def found_by(stack: Stack) -> dict[str, str]:
    """Return the variables by which `headrace` in another terminal finds `stack`."""
    return {"HEADRACE_GATEWAY_URL": stack.gateway_url, "HEADRACE_DATA": str(stack.data)}


def greeting(page: str, has_login: bool, variables: Mapping[str, str], key: Path) -> str:
    """Return the lines that lead a user to the page, and another terminal to the gateway.
    `has_login`: `page` is a link that logs in; else `key`, a file, is named."""
    login = "the link works once" if has_login else f"it asks for the API key, which is in {key}"
    exports = "\n".join(f"  {line}" for line in exported(variables))
    return (
        f"The page, as long as the demo works: {page} ({login})\n"
        f"For `headrace` in another terminal:\n{exports}"
    )


def _in_a_stack(up: UpOptions, options: Options) -> dict[str, Any]:
    playing = demo_agents.Agents(up.data)
    with Stack(up) as stack:

        def check() -> None:
            stack.check()
            playing.check()

        api = Gateway(stack.gateway_url, check, stack.api_key, found_by(stack))
        if not options.as_json:
            on_terminal = sys.stdout.isatty()
            page = api.login_link() if on_terminal else api.url
            print(greeting(page, on_terminal, found_by(stack), stack.data / API_KEY), flush=True)
        try:
            verdict = _learn(api, options, playing, stack.api_key)
            return _with_files(verdict, up.data.absolute(), options)
        except KeyboardInterrupt:
            err.print("\nstopping what the demo has started; Ctrl-C again kills it")
            raise


def _learn(
    api: Gateway, options: Options, playing: demo_agents.Agents, key: str | None = None
) -> dict[str, Any]:
    started = time.monotonic()
    upload_sums(api, options.agent)
    name = f"demo-{int(time.time()):x}"
    chain = api.post("/v1/chains", json=chain_of(name, options.quick, options.agent))

    def begun(step: dict[str, Any]) -> None:
        if options.agent and step["name"] == demo_agents.PLAYED:
            words = playing.start(api.url, key, step["run"])
            if not options.as_json:
                print(f"Its sessions are played by: {api.command(*words)}", flush=True)

    with playing.running():
        ended = watch_chain(api, chain["id"], options.as_json, options.as_json, begun)
    if ended["state"] != "succeeded":
        raise CliError(f"chain {ended['id']} {ended['state']}: {ended['reason']}")
    record = api.get(f"/v1/runs/{ended['steps'][-1]['run']}")
    api.text(f"/v1/chains/{ended['id']}/report")
    seconds = time.monotonic() - started

    steps = list(api.pages(f"/v1/runs/{record['id']}/metrics", "metrics"))
    trained = [step for step in steps if "time/step" in step]
    samples = sum(s["throughput/samples_per_second"] * s["time/step"] for s in trained)
    spent = sum(step["time/step"] for step in trained)
    learned = _rewards(trained, options) if options.agent else _accuracy(api, record, options)
    return {
        "chain": ended["id"],
        "run": record["id"],
        **learned,
        "steps": record["step"],
        "seconds": round(seconds, 1),
        "trained_samples_per_second": round(samples / max(spent, 1e-9), 1),
        "checkpoint": record["checkpoint"],
        "report": f"chains/{ended['id']}/report/report.html",
    }


def _accuracy(api: Gateway, record: dict[str, Any], options: Options) -> dict[str, float]:
    events = [event for event in api.events(record["id"]) if not isinstance(event, str)]
    accuracies = [event.data["accuracy"] for event in events if event.kind == "evaluation"]
    if not options.as_json:
        print(
            f"\nHeld-out accuracy on sums that carry: {accuracies[0]:.3f} before, "
            f"{accuracies[-1]:.3f} after {counted(record['step'], 'step')}.",
            flush=True,
        )
    return {"accuracy_before": accuracies[0], "accuracy_after": accuracies[-1]}


def _rewards(trained: list[dict[str, Any]], options: Options) -> dict[str, float]:
    rewards = [step["reward/mean"] for step in trained]
    last = rewards[-LAST:]
    before, after = rewards[0], sum(last) / len(last)
    if not options.as_json:
        print(
            f"\nMean reward of the agent: {before:.3f} in the first step, "
            f"{after:.3f} in the last {len(last)} of {len(rewards)}.",
            flush=True,
        )
    return {"reward_before": before, "reward_after": after}


def chain_of(name: str, quick: bool, agent: bool = False) -> dict[str, Any]:
    """Return the demo's chain: supervised training, then reinforcement learning."""
    (sft, first), (rl, second) = demo_agents.STEPS if agent else STEPS
    few = [{"training": {"max_steps": steps}} if quick else {} for steps in (first, second)]
    return {
        "name": name,
        "note": FEW_STEPS if quick else "",
        "pool": Settings().pool,
        "steps": [
            {"name": "sft", "recipe": sft, "config": few[0]},
            {"name": "rl", "recipe": rl, "config": few[1]},
        ],
    }


def _with_files(verdict: dict[str, Any], data: Path, options: Options) -> dict[str, Any]:
    """Add the paths of its files to the verdict."""
    checkpoint, report = data / verdict["checkpoint"], data / verdict["report"]
    if not options.as_json:
        # Without its agent, and so without its tool, the other model is not what was trained.
        chat = f"Chat with it: {pasted({}, 'chat', str(checkpoint), '27+35=')}\n"
        again = pasted({}, "up", "--data", str(data))
        print(
            f"Report:       {report}\nCheckpoint:   {checkpoint}\n{chat * (not options.agent)}"
            f"Its runs, on a page and for more of them: {again}\n"
        )
    return {**verdict, "checkpoint": str(checkpoint), "report": str(report)}
