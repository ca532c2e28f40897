"""Fine-tune a model with OpenAI's client: only `base_url` and `model` are Headrace's.

    python examples/openai_fine_tuning.py reinforcement --model run:RUN

The model is that of `headrace demo`, which forgets to carry in sums. Each method teaches it to: by
a grader's rewards (`reinforcement`), by right answers (`supervised`), or by pairs of a right
and a wrong answer (`dpo`), which alone teach it less. At the end the finished model gets sums that
no job has seen.

The model comes from `headrace demo`: `headrace up --data headrace-data/demo` serves its runs again,
and `headrace runs` names them. RUN is `demo-…-sft`, the supervised one. The model of
`headrace demo --quick` has learned too little: three epochs do not teach it sums. OPENAI_API_KEY is
the key of that folder (`api-key`).
"""

import argparse
import json
import os
import random
import time
from typing import Any

from openai import OpenAI

HELD_OUT = 100
ASKED = 20
RIGHT = {
    "type": "python",
    "name": "right",
    "source": "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])",
}
AS_LONG = {
    "type": "python",
    "name": "as_long",
    "source": (
        "def grade(sample, item):\n"
        "    return float(len(sample['output_text']) == len(item['answer']))"
    ),
}
GRADER = {
    "type": "multi",
    "name": "sum",
    "graders": {"right": RIGHT, "as_long": AS_LONG},
    "calculate_output": "0.9 * right + 0.1 * as_long",
}


def sums() -> list[tuple[int, int]]:
    """Return pairs of numbers whose units carry, always in the same order."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100) if a % 10 + b % 10 >= 10]
    random.Random(0).shuffle(pairs)
    return pairs


def row(method: str, a: int, b: int) -> dict[str, Any]:
    """Return a sum as a row of a training file. Wrong answers are too small or too large: with one
    kind alone, the model learns to give the other."""
    asked = [{"role": "user", "content": f"{a}+{b}="}]
    right, wrong = (
        [{"role": "assistant", "content": str(answer)}]
        for answer in (a + b, a + b + random.Random(100 * a + b).choice((-10, 10)))
    )
    if method == "supervised":
        return {"messages": asked + right}
    if method == "dpo":
        shown = {"input": {"messages": asked}, "preferred_output": right}
        return {**shown, "non_preferred_output": wrong}
    return {"messages": asked, "answer": str(a + b)}


def method_of(kind: str, epochs: int) -> dict[str, Any]:
    """Return the method of a job. So small a model learns at a high rate."""
    hyperparameters = {"n_epochs": epochs, "batch_size": 32, "learning_rate_multiplier": 100}
    options: dict[str, Any] = {"hyperparameters": hyperparameters}
    if kind == "reinforcement":
        options["grader"] = GRADER
    return {"type": kind, kind: options}


def upload(client: OpenAI, name: str, rows: list[dict[str, Any]]) -> str:
    """Return the id of a file with these rows."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return client.files.create(file=(name, content), purpose="fine-tune").id


def follow(client: OpenAI, job: str) -> Any:
    """Print a job's events until it is over, and return it."""
    last = ""
    while True:
        shown = client.fine_tuning.jobs.retrieve(job)
        events = []
        for event in client.fine_tuning.jobs.list_events(job, limit=100):
            if event.id == last:
                break
            events.append(event)
        for event in reversed(events):
            print(event.message, flush=True)
        last = events[0].id if events else last
        if shown.status in ("succeeded", "failed", "cancelled"):
            return shown
        time.sleep(1)


def share_right(client: OpenAI, model: str, pairs: list[tuple[int, int]]) -> float:
    """Return the share of sums to which a model gives the right answer."""
    right = 0
    for a, b in pairs:
        asked: Any = [{"role": "user", "content": f"{a}+{b}="}]
        answer = client.chat.completions.create(model=model, messages=asked, temperature=0)
        right += answer.choices[0].message.content == str(a + b)
    return right / len(pairs)


def main() -> None:
    """Create a job, follow it, and ask its model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=("supervised", "dpo", "reinforcement"))
    parser.add_argument("--model", required=True, help="the model to start from")
    parser.add_argument("--rows", type=int, default=1280)
    parser.add_argument("--epochs", type=int, help="default: 3 of a supervised job, else 1")
    asked = parser.parse_args()
    epochs = asked.epochs or (3 if asked.method == "supervised" else 1)
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/openai/v1"),
        api_key=os.environ["OPENAI_API_KEY"],
        # A worker loads the finished model when the first call asks for it.
        max_retries=10,
    )
    pairs = sums()
    held_out, train = pairs[:HELD_OUT], pairs[HELD_OUT : HELD_OUT + asked.rows]
    job = client.fine_tuning.jobs.create(
        model=asked.model,
        training_file=upload(client, "train.jsonl", [row(asked.method, *pair) for pair in train]),
        validation_file=upload(
            client, "held_out.jsonl", [row(asked.method, *pair) for pair in held_out]
        ),
        method=method_of(asked.method, epochs),  # type: ignore[arg-type]
        suffix="sums",
    )
    done = follow(client, job.id)
    if done.fine_tuned_model is None:
        raise SystemExit(f"the job {done.status}: {done.error}")
    print(client.files.content(done.result_files[0]).text)
    share = share_right(client, done.fine_tuned_model, held_out[:ASKED])
    print(
        f"{done.fine_tuned_model} is right about {share:.0%} of {ASKED} sums that it has not seen"
    )


if __name__ == "__main__":
    main()
