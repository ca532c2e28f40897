"""A chain whose last step evaluates what the first one made, answered by the pool's worker."""

from typing import Any

from headrace.cli.runs.chains import watch_chain
from tests.integration.installation.conftest import Installation


def test_a_step_of_a_chain_evaluates_what_an_earlier_step_made(installation: Installation) -> None:
    installation.add("held", [{"prompt": f"{n}+3", "answer": str(n + 3)} for n in range(6)])
    steps: list[dict[str, Any]] = [
        {
            "name": "sft",
            "recipe": "demo_sft",
            "config": {
                "model": {"source": "pretrained", "path": installation.model},
                "data": {"dataset": "sums"},
                "training": {"max_steps": 1, "rows_per_step": 8},
            },
        },
        {
            "name": "test",
            "config": {
                "type": "rl",
                "data": {"dataset": "held"},
                "rewards": [{"verifier": "exact"}],
                "sampling": {"max_tokens": 4},
                "rollout": {"vllm": {"max_model_len": 32}},
                "training": {"max_steps": 0},
                "evaluation": {"dataset": "held", "samples": 2, "temperature": 1.0},
            },
        },
    ]
    api = installation.api
    chain = api.post("/v1/chains", json={"name": "tested", "steps": steps})
    over = watch_chain(api, chain["id"], quiet=True)

    assert over["state"] == "succeeded", over["reason"]
    made, tested = over["steps"]
    run = tested["run"]
    record = api.get(f"/v1/runs/{run}")
    assert record["config"]["model"]["path"].startswith(f"run:{made['run']}")
    (evaluation,) = api.get(f"/v1/runs/{run}/evaluations")["evaluations"]
    assert (evaluation["state"], evaluation["rows"], evaluation["answered"]) == ("done", 6, 6)
    assert evaluation["metrics"]["failed"] == 0
    answers = api.get(f"/v1/runs/{run}/evaluations/{evaluation['id']}/answers")["rows"]
    assert [(one["row"], len(one["samples"])) for one in answers] == [(n, 2) for n in range(6)]
