"""Fine-tuning jobs of OpenAI's API: requests, rows, the run's config, and what a run's record says
of its job."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.fine_tuning import FineTuningJob as OpenAIJob
from openai.types.fine_tuning import FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from services.contracts.events import Event
from services.contracts.records import RunRecord, RunState
from services.gateway.openai_jobs.files import FieldError, FineTuningFile
from services.gateway.openai_jobs.job_config import JobFacts, planned, refused, run_name
from services.gateway.openai_jobs.job_events import events_of, first_events, run_event_id
from services.gateway.openai_jobs.job_requests import matches, metadata_filter, parsed_request
from services.gateway.openai_jobs.job_rows import dataset_rows
from services.gateway.openai_jobs.job_shelf import JobShelf
from services.gateway.openai_jobs.jobs import (
    JobCheckpoint,
    JobFailure,
    JobRecord,
    checkpoint_id,
    job_of,
    metrics_of,
    results_csv,
    status_of,
    trained_tokens,
)
from services.gateway.openai_jobs.training_rows import BadRowError

USER = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}
GRADER = {"type": "string_check", "name": "same", "input": "x", "reference": "x", "operation": "eq"}
ASKED = {"model": "org/base", "training_file": "file-1"}
REINFORCEMENT = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}
FORMAT = "method.reinforcement.response_format"
ID = f"ftjob-{'0123456789abcdef' * 2}"[:30]
FACTS = JobFacts("org/base", 4096, "d" * 16, 640, None)


def formatted(format: Any) -> dict[str, Any]:
    options = {"grader": GRADER, "response_format": format}
    return {**ASKED, "method": {"type": "reinforcement", "reinforcement": options}}


def file(id: str) -> FineTuningFile:
    return FineTuningFile(
        id=id, bytes=1, created_at=1, filename="rows.jsonl", purpose="fine-tune", expires_at=None
    )


def record(**request: Any) -> JobRecord:
    return JobRecord(
        id=ID,
        created=1000.5,
        request=parsed_request(ASKED | request),
        training=file("file-1"),
        seed=7,
        organization="acme",
        submitter="bob",
        is_new=False,
    )


def run(state: RunState, **fields: Any) -> RunRecord:
    known: dict[str, Any] = {"name": "sums", "pool": "default", "kind": "sft", "config": {}}
    return RunRecord(id=ID[6:14], created=1001.0, state=state, **(known | fields))


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        (formatted({"type": "json_object"}), f"{FORMAT}.type", "'json_object'"),
        (formatted({"type": "json_schema"}), f"{FORMAT}.json_schema.schema", "is required"),
        (
            formatted({"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}),
            f"{FORMAT}.json_schema.schema",
            "this is no JSON schema",
        ),
        ({"model": "x"}, "training_file", "is required"),
        ({**ASKED, "model": ""}, "model", "at least 1 character"),
        ({**ASKED, "epochs": 1}, "epochs", "is not known here"),
        ({**ASKED, "seed": -1}, "seed", "greater than or equal to 0"),
        ({**ASKED, "suffix": "x" * 65}, "suffix", "at most 64 characters"),
        ({**ASKED, "metadata": {"a": 1}}, "metadata.a", "valid string"),
        ({**ASKED, "metadata": {"a" * 65: ""}}, f"metadata.{'a' * 65}", "at most 64 characters"),
        ({**ASKED, "method": {"type": "ppo"}}, "method.type", "'ppo'"),
        ({**ASKED, "method": {"type": "dpo", "supervised": {}}}, "method.supervised", "not used"),
        (
            {**ASKED, "method": {"type": "reinforcement"}},
            "method.reinforcement.grader",
            "is required",
        ),
        ({**ASKED, "hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs", "from 1 to 50"),
        ({**ASKED, "hyperparameters": {}, "method": {"type": "dpo"}}, "hyperparameters", "older"),
        (
            {
                **ASKED,
                "method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": float("nan")}}},
            },
            "method.dpo.hyperparameters.beta",
            "above 0 to 2",
        ),
        (
            {
                **ASKED,
                "method": {
                    "type": "reinforcement",
                    "reinforcement": {
                        "grader": GRADER,
                        "hyperparameters": {"reasoning_effort": "high"},
                    },
                },
            },
            "method.reinforcement.hyperparameters.reasoning_effort",
            "is not supported",
        ),
        (
            {**ASKED, "integrations": [{"type": "comet", "wandb": {"project": "p"}}]},
            "integrations.0.type",
            "'comet' is not supported",
        ),
    ],
)
def test_a_field_that_cannot_be_used_is_named(body: Any, param: str, reason: str) -> None:
    with pytest.raises(FieldError, match=reason) as refusal:
        parsed_request(body)

    assert refusal.value.param == param


def test_the_older_form_of_a_request_is_a_supervised_job() -> None:
    older = parsed_request({**ASKED, "hyperparameters": {"n_epochs": 2}})
    hyperparameters = {"hyperparameters": {"n_epochs": 2}}

    newer = {**ASKED, "method": {"type": "supervised", "supervised": hyperparameters}}
    assert older == parsed_request(newer)
    assert parsed_request({**ASKED, "suffix": None, "seed": None}) == parsed_request(ASKED)


def converted(method: Any, *rows: Any) -> list[Any]:
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    return [json.loads(line) for line in dataset_rows(io.BytesIO(content), method)]


def test_rows_keep_what_a_run_needs() -> None:
    function = {"name": "add"}
    older = {"role": "assistant", "content": None, "function_call": {"name": "add"}}
    turns = [USER, older, {"role": "function", "name": "add", "content": "4"}, ANSWER]

    [row] = converted("supervised", {"messages": turns, "functions": [function], "level": 3})
    assert row["columns"] == {"tools": [{"type": "function", "function": function}], "level": 3}
    call = {"type": "function", "function": {"name": "add"}}
    assert row["messages"][1] == {"role": "assistant", "tool_calls": [call]}
    assert row["messages"][2]["role"] == "tool"

    pair = {
        "input": {"messages": [USER], "tools": [{"x": 1}], "parallel_tool_calls": True},
        "preferred_output": [ANSWER],
        "non_preferred_output": [{**ANSWER, "content": "5"}],
    }
    [row] = converted("dpo", pair)
    assert (row["prompt"], row["chosen"], row["rejected"]["content"]) == ([USER], ANSWER, "5")
    assert row["columns"] == {"tools": [{"x": 1}]}

    [row] = converted("reinforcement", {"messages": [USER], "answer": "4", "prompt": "kept"})
    assert row == {"prompt": [USER], "columns": {"answer": "4", "prompt": "kept"}}


@pytest.mark.parametrize(
    ("method", "row", "reason"),
    [
        ("supervised", {"messages": [USER]}, "no turn of the assistant"),
        ("supervised", {"messages": [ANSWER, USER]}, "must be the assistant's, not the user's"),
        ("supervised", {"messages": [USER, {**ANSWER, "weight": 0}]}, "has weight 0"),
        ("supervised", {"messages": [USER, {**ANSWER, "weight": 0.5}]}, "weight must be 0 or 1"),
        ("dpo", {"messages": [USER, ANSWER]}, "a row for dpo has input"),
        ("reinforcement", {"messages": [USER, ANSWER]}, "samples the answer"),
    ],
)
def test_a_row_of_another_method_is_named_by_its_line(method: Any, row: Any, reason: str) -> None:
    with pytest.raises(BadRowError, match=rf"line 1: .*{reason}"):
        converted(method, row)


def test_a_supervised_job_is_a_run_with_numbers_for_auto() -> None:
    held_out = JobFacts("run:0123abcd", 512, "train", 640, "valid")

    plan = planned(parsed_request(ASKED), held_out, 7)

    assert plan.used == {"n_epochs": 3, "batch_size": 10, "learning_rate_multiplier": 1.0}
    assert plan.config["model"] == {"path": "run:0123abcd"}
    assert plan.config["optimizer"] == {"lr": 1e-5}
    assert plan.config["data"] == {"dataset": "train", "max_seq_len": 512, "overlong": "crop"}
    training = plan.config["training"]
    assert (training["epochs"], training["seed"], training["rows_per_step"]) == (3.0, 7, 10)
    assert training["checkpoint_every"] == 64
    assert plan.config["validation"] == {"datasets": ["valid"], "every": 19}
    assert planned(parsed_request(ASKED), FACTS, 7).config["validation"] == {"share": 0.0}


def test_a_batch_is_never_larger_than_the_file() -> None:
    few = JobFacts("m", None, "train", 3, None)
    asked = parsed_request({**ASKED, "hyperparameters": {"batch_size": 200, "n_epochs": 2}})

    plan = planned(asked, few, 0)

    assert plan.config["training"]["rows_per_step"] == 3
    assert plan.config["data"]["max_seq_len"] == 16_384


def test_dpo_and_reinforcement_have_their_own_numbers() -> None:
    dpo = planned(parsed_request({**ASKED, "method": {"type": "dpo"}}), FACTS, 0)
    assert dpo.used["beta"] == dpo.config["objective"]["beta"] == 0.1
    assert dpo.config["optimizer"] == {"lr": 1e-6}

    hyperparameters = {"compute_multiplier": 2, "eval_samples": 4, "n_epochs": 1}
    options = {"grader": GRADER, "hyperparameters": hyperparameters}
    asked = {**ASKED, "method": {"type": "reinforcement", "reinforcement": options}}
    held_out = JobFacts("m", 64, "train", 640, "valid")
    plan = planned(parsed_request(asked), held_out, 0)
    assert plan.config["rewards"] == [{"verifier": "grader", "params": {"grader": GRADER}}]
    assert plan.config["algorithm"] == {"prompts_per_step": 32, "samples_per_prompt": 16}
    assert plan.config["sampling"] == {"max_tokens": 32}
    assert plan.config["rollout"] == {"vllm": {"max_model_len": 64}}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    options |= {"response_format": format}
    formed = planned(parsed_request(asked), held_out, 0)
    assert formed.config["sampling"] == {"max_tokens": 32, "json_schema": schema, "top_k": 50}
    evaluation = {"dataset": "valid", "every": 2, "samples": 4, "temperature": 1.0}
    assert plan.config["evaluation"] == evaluation
    assert plan.used == {
        "n_epochs": 1,
        "batch_size": 32,
        "learning_rate_multiplier": 1.0,
        "compute_multiplier": 2,
        "eval_interval": 2,
        "eval_samples": 4,
    }


def test_problems_of_the_run_name_fields_of_the_job() -> None:
    request = parsed_request({**ASKED, "method": REINFORCEMENT})
    for key, param in (
        ("rewards.0.params.grader.string_check.input", "method.reinforcement.grader.input"),
        ("optimizer.lr", "method.reinforcement.hyperparameters.learning_rate_multiplier"),
        ("model.path", "model"),
        ("tracking.wandb", "integrations"),
        ("rollout.vllm", ""),
    ):
        refusal = refused(request, [(key, "is wrong")], "")
        assert (refusal.param, str(refusal)[:8]) == (param, "is wrong")


def test_the_name_of_a_run_says_whose_job_it_is() -> None:
    assert run_name(parsed_request(ASKED), "rows.jsonl") == "rows"
    assert run_name(parsed_request({**ASKED, "suffix": "sums"}), "rows.jsonl") == "sums"
    named = [{"type": "wandb", "wandb": {"project": "p", "name": "shown"}}]
    assert run_name(parsed_request({**ASKED, "integrations": named}), "rows.jsonl") == "shown"


def strict(job: Any) -> OpenAIJob:
    return OpenAIJob.model_validate(job.model_dump(), strict=True)


def test_a_job_follows_from_its_run() -> None:
    job = record(suffix="sums", metadata={"team": "a"})
    shown = strict(job_of(job, run(RunState.RUNNING, eta_seconds=60.0), now=2000.0))
    assert (shown.status, shown.estimated_finish, shown.trained_tokens) == ("running", 2060, None)
    assert (shown.fine_tuned_model, shown.finished_at, shown.result_files) == (None, None, [])

    metrics = {"train/tokens": 1234.0}
    done = strict(job_of(job, run(RunState.SUCCEEDED, finished=1500.9, metrics=metrics)))
    assert done.fine_tuned_model == "ft:org/base:acme:sums:01234567"
    assert (done.finished_at, done.trained_tokens) == (1500, 1234)
    assert done.result_files == ["file-0123456789abcdef01234567"]
    assert (done.metadata, done.seed, done.organization_id) == ({"team": "a"}, 7, "acme")

    failed = strict(job_of(job, run(RunState.FAILED, reason="no memory", finished=2.0)))
    assert failed.error is not None
    assert (failed.status, failed.error.message) == ("failed", "no memory")

    again = record(model="ft:run:base:acme:sums:01234567:ckpt-step-3")
    assert again.model_name() == "ft:run:base:acme::01234567"


@pytest.mark.parametrize(
    ("state", "by", "status"),
    [
        (RunState.QUEUED, "", "queued"),
        (RunState.STARTING, "", "running"),
        (RunState.PAUSED, "", "running"),
        (RunState.PAUSED, "bob", "paused"),
        (RunState.RUNNING, "bob", "paused"),
        (RunState.CANCELLING, "", "cancelled"),
        (RunState.CANCELLED, "", "cancelled"),
    ],
)
def test_a_status_follows_from_the_state_of_the_run(state: RunState, by: str, status: str) -> None:
    assert status_of(record(), run(state, paused_by=by)) == status


def test_a_job_without_a_run_validates_or_has_failed() -> None:
    assert strict(job_of(record(), None)).status == "validating_files"
    error = JobFailure(code="invalid_training_file", message="line 3", param="training_file")

    failed = strict(job_of(record().model_copy(update={"error": error}), None))

    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.param == "training_file"


def test_tokens_of_a_step_that_was_trained_twice_count_once() -> None:
    step: dict[str, Any] = {"step": 1, "throughput/tokens_per_second": 50.0, "time/step": 2.0}
    rows: list[dict[str, Any]] = [step, step, {**step, "step": 2}, {"evaluation/step": 2}]

    assert trained_tokens(run(RunState.SUCCEEDED, kind="rl"), rows) == 200


def test_results_are_a_table_by_step() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 0, "validation/loss": 0.5},
        {"step": 1, "train/loss": 0.25, "time": 3},
        {"step": 2, "train/loss": 0.125, "validation/loss": None},
    ]
    header = "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy"
    expected = f"{header}\n0,,,0.5,\n1,0.25,,,\n2,0.125,,,\n"
    assert results_csv("supervised", rows).decode() == expected
    sampled = [{"step": 1, "reward/mean": 0.5}, {"evaluation/step": 1, "evaluation/reward": 1.0}]
    expected = "step,train_mean_reward,valid_mean_reward\n1,0.5,1\n"
    assert results_csv("reinforcement", sampled).decode() == expected


def event(kind: Any, **data: Any) -> Event:
    return Event(id="1700000000000-3", time=1700.5, kind=kind, data=data)


def test_events_of_a_run_are_events_of_its_job() -> None:
    job = record(suffix="s")
    given = [
        event("state", state="queued", reason=""),
        event("progress", step=3, **{"train/loss": 0.125}, done=3, total=9, unit="steps"),
        event("step", step=3, **{"reward/mean": 0.5, "train/loss": 0.1}),
        event("checkpoint", step=3, directory="d"),
        event("evaluation", step=3, reward=0.75, id="x", version=1, name="v"),
        event("state", state="failed", reason="no memory"),
        event("state", state="succeeded", reason=""),
    ]
    events = [*first_events(job), *(each for e in given for each in events_of(job, e, 9))]

    parsed = [FineTuningJobEvent.model_validate(e.model_dump(), strict=True) for e in events]
    assert [each.message for each in parsed] == [
        f"Created fine-tuning job: {ID}",
        "Validating file: file-1",
        "Files validated, moving job to queued state",
        "Step 3/9: training loss=0.12",
        "Step 3/9: training mean reward=0.50",
        "Checkpoint created at step 3: ft:org/base:acme:s:01234567:ckpt-step-3",
        "Evaluation at step 3: validation mean reward=0.75",
        "Fine-tuning job failed: no memory",
        "New fine-tuned model created: ft:org/base:acme:s:01234567",
        "The job has successfully completed",
    ]
    assert [each.level for each in parsed][-3:] == ["error", "info", "info"]
    assert [each.type for each in parsed][3:5] == ["metrics", "metrics"]
    assert parsed[3].data == {"step": 3, "train_loss": 0.125, "total_steps": 9}
    assert len({each.id for each in parsed[-2:]}) == 2
    assert {run_event_id(each.id) for each in parsed[-2:]} == {"1700000000000-3"}


def test_a_checkpoint_parses_into_openais_type() -> None:
    shown = JobCheckpoint(
        id=checkpoint_id(ID, 3),
        created_at=1,
        fine_tuned_model_checkpoint=record().model_name(3),
        fine_tuning_job_id=ID,
        step_number=3,
        metrics=metrics_of({"train/loss": 0.5, "validation/loss": 0.25}, 3),
    ).model_dump(exclude_none=True)

    parsed = FineTuningJobCheckpoint.model_validate(shown | {"metrics": {**shown["metrics"]}})
    assert (parsed.metrics.train_loss, parsed.metrics.full_valid_loss) == (0.5, 0.25)


def test_lists_are_filtered_by_metadata() -> None:
    wanted = metadata_filter([("metadata[a]", "1"), ("limit", "3")], {"limit"})
    assert [matches(m, wanted) for m in ({"a": "1", "b": "2"}, {"a": "2"}, None)] == [
        True,
        False,
        False,
    ]
    without = metadata_filter([("metadata", "null")], set())
    assert [matches(m, without) for m in ({"a": "1"}, {}, None)] == [False, True, True]
    with pytest.raises(FieldError, match="is not known here"):
        metadata_filter([("page", "1")], {"limit"})


def test_a_record_moves_once_its_run_is_queued(tmp_path: Path) -> None:
    shelf = JobShelf(tmp_path)
    new = record().model_copy(update={"is_new": True})
    assert (shelf.all(), shelf.new_ids(), shelf.get(ID)) == ([], [], None)

    shelf.begin(new)
    assert (shelf.all(), shelf.new_ids(), shelf.get(ID)) == ([new], [ID], new)
    shelf.settle(record())

    assert (shelf.all(), shelf.new_ids(), shelf.new(ID)) == ([record()], [], None)
    assert shelf.get(f"../jobs/{ID}") is None
    (tmp_path / "openai" / "jobs" / f"{ID}.json").write_text("{")
    assert shelf.all() == []
