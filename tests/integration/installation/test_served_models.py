"""Finished runs are asked: a worker without a run loads their checkpoints on demand. The official
OpenAI client waits for as long as `Retry-After` says."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.installation.conftest import Installation
from tests.integration.launch.conditions import eventually

PROMPT: Any = "1+1="


@pytest.fixture(scope="module")
def client(installation: Installation) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{installation.stack.gateway_url}/v1",
        api_key=installation.stack.api_key,
        timeout=60,
        max_retries=20,
    ) as client:
        yield client


def ask(client: openai.OpenAI, model: str, **options: Any) -> Any:
    return client.completions.create(
        **{"model": model, "prompt": PROMPT, "max_tokens": 3} | options
    )


def the_worker(installation: Installation) -> dict[str, Any]:
    workers = installation.api.get("/v1/workers")["workers"]
    return next(worker for worker in workers if worker["state"] != "silent")


def vllm_of(worker: int) -> int:
    """Return the process id of the vLLM of a worker's process."""
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    for child in map(int, children):
        if b"tests.scripted_vllm" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise AssertionError(f"process {worker} has no vLLM")


@pytest.mark.timeout(300)
def test_a_finished_run_answers_until_training_needs_its_worker(
    client: openai.OpenAI, installation: Installation
) -> None:
    supervised = installation.model.removeprefix("run:")
    for model in (supervised, f"{supervised}@3", f"{supervised}@latest"):
        assert ask(client, model).model == f"{supervised}@3"
    worker = the_worker(installation)
    assert (worker["state"], worker["models"]) == ("serving", [f"{supervised}@3"])
    with pytest.raises(openai.NotFoundError, match=f"no checkpoint of step 2.*{supervised}@3"):
        ask(client, f"{supervised}@2")

    stream = ask(client, supervised, max_tokens=100, stream=True, seed=1)
    next(stream)
    os.kill(vllm_of(worker["pid"]), signal.SIGKILL)
    # A short answer may be whole already.
    with contextlib.suppress(openai.APIError):
        list(stream)
    assert ask(client, supervised).model == f"{supervised}@3"

    run = installation.submit(
        data={"dataset": "sums"}, training={"max_steps": 2, "checkpoint_every": 1}
    )
    eventually(lambda: the_worker(installation)["run"] == run)
    with pytest.raises(openai.InternalServerError, match="training comes first") as later:
        ask(client.with_options(max_retries=0), supervised)
    assert later.value.response.headers["Retry-After"] == "30"
    assert installation.ended(run)[0]["state"] == "succeeded"
    for model in (f"{run}@1", f"{run}@2", supervised):
        assert ask(client, model).model.startswith(model)


@pytest.mark.timeout(120)
def test_a_damaged_checkpoint_is_named_and_its_model_deleted(
    client: openai.OpenAI, installation: Installation
) -> None:
    run = installation.submit("demo_sft", training={"max_steps": 1}, data={"dataset": "sums"})
    assert installation.ended(run)[0]["state"] == "succeeded"
    (weights,) = (installation.stack.data / "runs" / run).glob("checkpoints/*/model.safetensors")
    with weights.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\1" * 8)
    with pytest.raises(openai.UnprocessableEntityError, match=r"model\.safetensors") as damaged:
        ask(client, run)
    assert damaged.value.code == "checkpoint_unusable"

    jobs = client.with_options(base_url=f"{installation.stack.gateway_url}/openai/v1")
    (name,) = (
        model.id for model in jobs.models.list() if model.id.startswith("ft:") and run in model.id
    )
    assert jobs.models.retrieve(f"{name}:ckpt-step-1").id == f"{name}:ckpt-step-1"
    permissions = jobs.fine_tuning.checkpoints.permissions
    (made,) = permissions.create(name, project_ids=["support"])
    assert [each.id for each in permissions.list(name)] == [made.id]
    assert permissions.delete(made.id, fine_tuned_model_checkpoint=name).deleted
    with pytest.raises(openai.BadRequestError, match="only a fine-tuned model can"):
        jobs.models.delete(f"{name}:ckpt-step-1")
    assert jobs.models.delete(name).deleted
    for gone in (name, f"{name}:ckpt-step-1", "run:nobody"):
        with pytest.raises(openai.NotFoundError):
            jobs.models.retrieve(gone)
