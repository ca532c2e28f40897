"""Fine-tuning jobs with OpenAI's client: the run behind a job, refusals, killed gateways."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.fine_tuning import FineTuningJob

from tests.integration.gateway.servers import GatewayProcess, RedisServer
from tests.integration.launch.conditions import eventually

USER = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
GRADER = {"type": "string_check", "name": "same", "input": "x", "reference": "x", "operation": "eq"}


def sdk(gateway: GatewayProcess) -> openai.OpenAI:
    url = f"{gateway.url}/openai/v1"
    return openai.OpenAI(base_url=url, api_key=gateway.key, max_retries=0)


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with sdk(gateway) as client:
        yield client


@pytest.fixture
def file(client: openai.OpenAI) -> str:
    return sent(client, [{"messages": [USER, ANSWER]}] * 12)


def sent(client: openai.OpenAI, rows: list[Any], name: str = "rows.jsonl") -> str:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return client.files.create(file=(name, content), purpose="fine-tune").id


def strict(job: FineTuningJob) -> FineTuningJob:
    """Check that a job parses strictly into the type of OpenAI's package."""
    return FineTuningJob.model_validate(job.to_dict(), strict=True)


def test_a_job_is_a_run_from_its_creation_to_its_end(
    client: openai.OpenAI, api: httpx.Client, model: Path, file: str
) -> None:
    jobs = client.fine_tuning.jobs
    key = {"Idempotency-Key": str(uuid.uuid4())}
    asked: dict[str, Any] = {
        "model": str(model),
        "training_file": file,
        "suffix": "sums",
        "seed": 3,
        "metadata": {"team": str(uuid.uuid4())},
    }

    job = strict(jobs.create(**asked, extra_headers=key))

    assert (job.status, job.seed, job.fine_tuned_model) == ("queued", 3, None)
    assert job.hyperparameters.n_epochs == 3
    again = jobs.create(**asked, extra_headers=key)
    assert again.id == job.id
    with pytest.raises(openai.BadRequestError, match="was sent with another request"):
        jobs.create(**{**asked, "seed": 4}, extra_headers=key)
    [run] = api.get("/v1/runs?name=sums&state=queued").json()["runs"]
    assert run["id"] == job.id[6:14]
    assert run["notes"] == f"OpenAI fine-tuning job {job.id}"
    assert run["tags"] == ["openai", "supervised"]

    # The rows were copied: the file may go.
    client.files.delete(file)
    assert strict(jobs.retrieve(job.id)).training_file == file
    assert [each.id for each in jobs.list(metadata=asked["metadata"])] == [job.id]
    with pytest.raises(openai.BadRequestError, match="has not begun") as refused:
        jobs.pause(job.id)
    assert refused.value.code == "invalid_status"

    cancelled = strict(jobs.cancel(job.id))
    assert (cancelled.status, cancelled.finished_at is not None) == ("cancelled", True)
    assert jobs.cancel(job.id).status == "cancelled"
    newest_first = [event.message for event in jobs.list_events(job.id, limit=1)]
    assert newest_first[-1] == f"Created fine-tuning job: {job.id}"
    assert newest_first[0].startswith("Fine-tuning job cancelled")
    streamed = api.get(f"/openai/v1/fine_tuning/jobs/{job.id}/events?stream=true").text
    lines = [line.removeprefix("data: ") for line in streamed.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    assert [json.loads(line)["message"] for line in lines] == newest_first[::-1]
    assert jobs.checkpoints.list(job.id).data == []

    api.delete(f"/v1/runs/{run['id']}")
    with pytest.raises(openai.NotFoundError, match="there is no fine-tuning job"):
        jobs.retrieve(job.id)
    assert not jobs.list(metadata=asked["metadata"]).data


def test_lists_of_jobs_have_pages(client: openai.OpenAI, model: Path, file: str) -> None:
    jobs, team = client.fine_tuning.jobs, {"team": str(uuid.uuid4())}
    made = [
        jobs.create(model=str(model), training_file=file, suffix="same", metadata=team).id
        for _ in range(3)
    ]

    page = jobs.list(limit=2, metadata=team)

    assert (page.has_more, [job.id for job in page.data]) == (True, made[:0:-1])
    assert [job.id for job in jobs.list(limit=1, metadata=team)] == made[::-1]
    with pytest.raises(openai.BadRequestError, match="there is no 'ftjob-x'"):
        jobs.list(after="ftjob-x")
    for id in made:
        jobs.cancel(id)


def test_a_refused_job_leaves_nothing(
    client: openai.OpenAI, api: httpx.Client, model: Path, file: str
) -> None:
    jobs = client.fine_tuning.jobs
    unanswered = sent(client, [{"messages": [USER, ANSWER]}, {"messages": [USER]}], "asked.jsonl")
    dpo: Any = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 3}}}
    wandb: Any = [{"type": "wandb", "wandb": {"project": "mine"}}]
    refusals: list[tuple[dict[str, Any], str, str]] = [
        ({"model": "/no/such/folder"}, "model", "/no/such/folder"),
        ({"model": "gpt-4o-mini-2024-07-18"}, "model", "gpt-4o-mini"),
        ({"model": "ft:x:personal::01234567"}, "model", "01234567"),
        ({"training_file": "file-none"}, "training_file", "there is no file 'file-none'"),
        ({"validation_file": "file-none"}, "validation_file", "there is no file"),
        ({"training_file": unanswered}, "training_file", "asked.jsonl: line 2: .* no turn of"),
        ({"method": dpo}, "method.dpo.hyperparameters.beta", "above 0 to 2"),
        ({"method": {"type": "dpo"}}, "training_file", "line 1: a row for dpo has input"),
        ({"integrations": wandb}, "integrations", "wandb"),
        ({"extra_body": {"n_epochs": 3}}, "n_epochs", "is not known here"),
    ]
    before = len(api.get("/v1/runs").json()["runs"])
    for change, param, reason in refusals:
        with pytest.raises(openai.BadRequestError, match=reason) as refused:
            jobs.create(**({"model": str(model), "training_file": file} | change))
        body: Any = refused.value.body
        assert (body["param"], body["type"]) == (param, "invalid_request_error")
    assert not [job for job in jobs.list(limit=100) if job.status == "validating_files"]
    assert len(api.get("/v1/runs").json()["runs"]) == before


@pytest.mark.parametrize("moment", ["dataset", "queue"])
def test_a_job_whose_gateway_was_killed_gets_its_run_from_another_gateway(
    moment: str, client: openai.OpenAI, gateway: GatewayProcess, redis_server: RedisServer,
    api: httpx.Client, model: Path,
) -> None:  # fmt: skip
    content = [{"messages": [{**USER, "content": moment}, ANSWER]}]
    file, team = sent(client, content), {"team": str(uuid.uuid4())}
    module = ("tests.integration.gateway.dying_gateway",)
    dying = GatewayProcess(gateway.data, redis_server.url, module=module, DIES_AT=moment)
    asked: Any = {"model": str(model), "training_file": file, "metadata": team}
    with sdk(dying) as doomed, pytest.raises(openai.APIConnectionError):
        doomed.fine_tuning.jobs.create(**asked)
    dying.stop()

    def is_queued() -> bool:
        [job] = client.fine_tuning.jobs.list(metadata=team)
        assert job.status in ("validating_files", "queued")
        return job.status == "queued"

    eventually(is_queued)
    [job] = client.fine_tuning.jobs.list(metadata=team)
    runs = api.get("/v1/runs?limit=200").json()["runs"]
    assert [run["state"] for run in runs if run["notes"].endswith(job.id)] == ["queued"]
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
