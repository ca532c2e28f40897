"""Each operation of the gateway's API, as a request to send. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501

from typing import Any, Literal

from headrace.models import (
    Answers,
    AnswerToScore,
    AnthropicModels,
    Audit,
    CancelledRun,
    ChainDryRun,
    ChainList,
    ChainSubmission,
    ChainView,
    ChatRequest,
    Checkpoint,
    CheckpointList,
    CheckpointPage,
    CompletionsRequest,
    ConversationAnswer,
    CountAnswer,
    CountRequest,
    DatasetFindings,
    DatasetList,
    DatasetPreview,
    DatasetRecord,
    Deleted,
    DeletedFile,
    DeletedOpenAIModel,
    DeletedPermission,
    DryRun,
    EndAnswer,
    EvaluationComparison,
    EvaluationRecord,
    EvaluationSubmission,
    FileList,
    FilePreview,
    FineTuningFile,
    FineTuningJob,
    FineTuningPart,
    FineTuningUpload,
    Fork,
    GraderRunAnswer,
    GraderToRun,
    GraderToValidate,
    Health,
    Items,
    JobEventList,
    JobList,
    JsonSchema,
    KeyList,
    LeasedGroup,
    Login,
    LogPage,
    MadeKey,
    MadeVerifier,
    MessagesAnswer,
    MessagesRequest,
    ModelEvaluation,
    ModelEvaluations,
    NewConversation,
    NewFineTuningJob,
    NewItems,
    NewKey,
    NewSession,
    NewUpload,
    NewVerifier,
    OpenAIAnswer,
    OpenAIModel,
    OpenAIModelList,
    OpenAIModels,
    OpenedSession,
    OwnPrompt,
    PartsOfUpload,
    PermissionPage,
    PermissionsRequest,
    PolicyChatRequest,
    PolicyCompletionsRequest,
    PolicyCountRequest,
    PolicyMessagesRequest,
    PolicyResponsesRequest,
    PoolLoad,
    PreviewRequest,
    PromptAddition,
    PromptsAdded,
    RecipeList,
    RecipeModel,
    ResponsesAnswer,
    Resumption,
    RewardAnswer,
    RewardRequest,
    RolloutGroup,
    Rollouts,
    RolloutStatus,
    RowsOverSteps,
    RunEvaluations,
    RunList,
    RunMetrics,
    RunPatch,
    RunPreview,
    RunRecord,
    RunSamples,
    RunState,
    RunSubmission,
    ScoredAnswer,
    SeriesAnswer,
    SeriesNames,
    SessionResponsesRequest,
    Upload,
    Uploaded,
    UploadRequest,
    ValidatedGrader,
    VerifierPage,
    Why,
    WorkerList,
)
from headrace.request import EventStream, Files, Request


def keys_create(*, body: NewKey | dict[str, Any]) -> Request[MadeKey]:
    """Make an API key. A key for one person or machine, which can be revoked alone. Its role, surface and project
    limit what it may do. A request beyond them is refused (403), and the refusal names the role or
    the surface."""
    return Request("POST", "/v1/keys", MadeKey, body=body, is_keyed=True)


def keys_list(*, limit: int | None = None, cursor: str | None = None) -> Request[KeyList]:
    """List API keys. Their names and ids, without the first key, which is in the data folder."""
    return Request("GET", "/v1/keys", KeyList, query={"limit": limit, "cursor": cursor})


def keys_delete(*, id: str) -> Request[None]:
    """Revoke an API key. Requests with it are refused from now on."""
    return Request("DELETE", "/v1/keys/{id}", None, path={"id": id}, is_keyed=True)


def logins_create() -> Request[Login]:
    """Make a login link. A token that begins one session of the page, within an hour: open `/#login=TOKEN` in a
    browser. The request must carry the key itself."""
    return Request("POST", "/v1/login", Login)


def chains_create(
    *, dry_run: bool | None = None, body: ChainSubmission | dict[str, Any]
) -> Request[ChainView | ChainDryRun]:
    """Submit a chain. Check all steps of a chain and queue them at once. Each step is a run, which starts when the
    one before it has succeeded. A step that fails or is cancelled ends the chain. With `dry_run`
    nothing is queued, and the answer (200) has for each step what a run's dry run has."""
    return Request(
        "POST",
        "/v1/chains",
        ChainView | ChainDryRun,
        query={"dry_run": dry_run},
        body=body,
        is_keyed=True,
    )


def chains_list(*, limit: int | None = None, cursor: str | None = None) -> Request[ChainList]:
    """List chains. Chains with their steps, newest first, page by page. The answer has an `ETag`, as the list of
    runs has."""
    return Request("GET", "/v1/chains", ChainList, query={"limit": limit, "cursor": cursor})


def chains_get(*, chain: str) -> Request[ChainView]:
    """Show a chain. One chain: its state, the reason for it, and the runs of its steps."""
    return Request("GET", "/v1/chains/{chain}", ChainView, path={"chain": chain})


def chains_delete(*, chain: str) -> Request[None]:
    """Delete a chain. Delete a chain that is over, with all its runs: their records, metrics, answers and
    checkpoints. Refused (409) while another run continues one of them."""
    return Request("DELETE", "/v1/chains/{chain}", None, path={"chain": chain}, is_keyed=True)


def chains_cancel(*, chain: str, now: bool | None = None) -> Request[ChainView]:
    """Cancel a chain. Ask a chain to end: its present run is cancelled, and no later step begins. Cancelling twice
    is fine; a chain that has succeeded or failed cannot be cancelled (409)."""
    return Request(
        "POST",
        "/v1/chains/{chain}/cancel",
        ChainView,
        path={"chain": chain},
        query={"now": now},
        is_keyed=True,
    )


def chains_resume(*, chain: str, body: Resumption | dict[str, Any]) -> Request[ChainView]:
    """Resume a chain. Resume the step that failed or was cancelled: a new run continues it from its last
    checkpoint, or begins it anew if it has no checkpoint."""
    return Request(
        "POST",
        "/v1/chains/{chain}/resume",
        ChainView,
        path={"chain": chain},
        body=body,
        is_keyed=True,
    )


def datasets_create(
    *,
    files: Files | None = None,
    upload: list[str] | None = None,
    hub: str | None = None,
    name: str | None = None,
    format: Literal["jsonl", "csv", "parquet", "tar"] | None = None,
    mapping: str | None = None,
    verifier: str | None = None,
    source: str | None = None,
    bad_rows: Literal["refuse", "skip"] | None = None,
) -> Request[Uploaded]:
    """Upload a dataset. Convert uploaded files into a dataset. Uploading the same again changes nothing (200). Other
    rows under a name that exists are refused (409), and so is a mapping with other defaults."""
    return Request(
        "POST",
        "/v1/datasets",
        Uploaded,
        files=files,
        form={
            "upload": upload,
            "hub": hub,
            "name": name,
            "format": format,
            "mapping": mapping,
            "verifier": verifier,
            "source": source,
            "bad_rows": bad_rows,
        },
        is_repeatable=True,
    )


def datasets_list(*, limit: int | None = None, cursor: str | None = None) -> Request[DatasetList]:
    """List datasets. All datasets, by name, page by page."""
    return Request("GET", "/v1/datasets", DatasetList, query={"limit": limit, "cursor": cursor})


def datasets_get(*, dataset: str) -> Request[DatasetRecord]:
    """Show a dataset. One dataset and its segments."""
    return Request("GET", "/v1/datasets/{dataset}", DatasetRecord, path={"dataset": dataset})


def datasets_delete(*, dataset: str) -> Request[None]:
    """Delete a dataset. Delete a dataset and its files. Refused (409) while a run or a chain uses it that is not
    over."""
    return Request(
        "DELETE", "/v1/datasets/{dataset}", None, path={"dataset": dataset}, is_keyed=True
    )


def datasets_preview(
    *, dataset: str, row: int | None = None, limit: int | None = None, cursor: str | None = None
) -> Request[DatasetPreview]:
    """Look at rows. Rows by index, as rollout workers see them, page by page."""
    return Request(
        "GET",
        "/v1/datasets/{dataset}/preview",
        DatasetPreview,
        path={"dataset": dataset},
        query={"row": row, "limit": limit, "cursor": cursor},
    )


def uploads_preview(
    *,
    files: Files | None = None,
    upload: str | None = None,
    is_head: bool | None = None,
    format: Literal["jsonl", "csv", "parquet", "tar"] | None = None,
    mapping: str | None = None,
    limit: int | None = None,
) -> Request[FilePreview]:
    """Preview a file with a mapping. Read the first rows of a file, and make rows of a dataset of them. Nothing is stored. A file
    or a mapping that cannot be used is a `problem` of the answer."""
    return Request(
        "POST",
        "/v1/datasets/preview",
        FilePreview,
        files=files,
        form={
            "upload": upload,
            "is_head": is_head,
            "format": format,
            "mapping": mapping,
            "limit": limit,
        },
    )


def datasets_findings_get(
    *, dataset: str, model: str | None = None, verifier: list[str] | None = None
) -> Request[DatasetFindings]:
    """Lengths, repetitions and unreadable references. Count the rows of a dataset. Lengths, repetitions and references are counted over all rows,
    once, and the counts are kept. Tokens are counted over at most 2,000 rows."""
    return Request(
        "GET",
        "/v1/datasets/{dataset}/findings",
        DatasetFindings,
        path={"dataset": dataset},
        query={"model": model, "verifier": verifier},
    )


def datasets_append(*, body: PromptAddition | dict[str, Any]) -> Request[PromptsAdded]:
    """Add prompts to a dataset. Append rows. A run that is training on the dataset uses them from its next epoch on."""
    return Request("POST", "/v1/prompts", PromptsAdded, body=body, is_keyed=True)


def uploads_create(*, body: UploadRequest | dict[str, Any]) -> Request[Upload]:
    """Begin or continue an upload in parts. Begin an upload, or find the one of the same file. Send its parts with `PUT`, and name it in
    `POST /v1/datasets`."""
    return Request("POST", "/v1/uploads", Upload, body=body, is_keyed=True)


def uploads_get(*, upload: str) -> Request[Upload]:
    """Show an upload in parts. How much of a file has arrived."""
    return Request("GET", "/v1/uploads/{upload}", Upload, path={"upload": upload})


def uploads_put(*, upload: str, from_byte: int, content: bytes) -> Request[Upload]:
    """Send a part of a file. Write a part of the file. Bytes that have arrived before are skipped, so a part whose answer
    was lost is sent again. What arrives before the connection breaks is kept."""
    return Request(
        "PUT",
        "/v1/uploads/{upload}",
        Upload,
        path={"upload": upload},
        query={"from_byte": from_byte},
        content=content,
    )


def uploads_delete(*, upload: str) -> Request[None]:
    """Give up an upload in parts. Delete what has arrived of a file."""
    return Request("DELETE", "/v1/uploads/{upload}", None, path={"upload": upload}, is_keyed=True)


def evaluations_create(*, body: EvaluationSubmission | dict[str, Any]) -> Request[ModelEvaluation]:
    """Evaluate a model. Queue the evaluation of a model on a dataset by the workers of a pool. It waits for its turn
    as a run does. Whatever process dies meanwhile, each row is answered once."""
    return Request("POST", "/v1/evaluations", ModelEvaluation, body=body, is_keyed=True)


def evaluations_list(
    *, limit: int | None = None, cursor: str | None = None
) -> Request[ModelEvaluations]:
    """List evaluations of models. List the evaluations that `POST /v1/evaluations` started, newest first, page by page."""
    return Request(
        "GET", "/v1/evaluations", ModelEvaluations, query={"limit": limit, "cursor": cursor}
    )


def evaluations_get(*, run: str) -> Request[ModelEvaluation]:
    """Show an evaluation of a model. One of them: its state, its progress, its figures. Its answers are those of its run
    (`GET /v1/runs/RUN/evaluations/ID/answers`)."""
    return Request("GET", "/v1/evaluations/{run}", ModelEvaluation, path={"run": run})


def run_evaluations_compare(
    *, run: str, evaluation: str, against: str, limit: int | None = None
) -> Request[EvaluationComparison]:
    """Compare two evaluations. Compare by row: with one answer a row McNemar's exact test, otherwise a sign-flip permutation
    test."""
    return Request(
        "GET",
        "/v1/runs/{run}/evaluations/{evaluation}/comparison",
        EvaluationComparison,
        path={"run": run, "evaluation": evaluation},
        query={"against": against, "limit": limit},
    )


def evaluation_rows_list(
    *,
    run: str,
    evaluation: str,
    change: Literal["better", "worse", "unsteady", "steady"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[RowsOverSteps]:
    """Rows over the steps of a run. Which rows turned right and which turned wrong between the evaluations of a set, up to this
    evaluation. The same rows are compared, so a small change stands out."""
    return Request(
        "GET",
        "/v1/runs/{run}/evaluations/{evaluation}/rows",
        RowsOverSteps,
        path={"run": run, "evaluation": evaluation},
        query={"change": change, "limit": limit, "cursor": cursor},
    )


def run_evaluations_list(
    *, run: str, limit: int | None = None, cursor: str | None = None
) -> Request[RunEvaluations]:
    """Evaluations. All evaluations of a run, page by page: those that have ended with their figures, the open
    one with its progress, and those that wait."""
    return Request(
        "GET",
        "/v1/runs/{run}/evaluations",
        RunEvaluations,
        path={"run": run},
        query={"limit": limit, "cursor": cursor},
    )


def run_evaluations_get(*, evaluation: str, run: str) -> Request[EvaluationRecord]:
    """One evaluation. One evaluation with its figures, or its progress."""
    return Request(
        "GET",
        "/v1/runs/{run}/evaluations/{evaluation}",
        EvaluationRecord,
        path={"evaluation": evaluation, "run": run},
    )


def evaluation_answers_list(
    *,
    run: str,
    evaluation: str,
    limit: int | None = None,
    cursor: str | None = None,
    verdict: Literal["correct", "wrong", "mixed", "unscored"] | None = None,
    category: str | None = None,
    row: int | None = None,
) -> Request[Answers]:
    """Answers of an evaluation. Every answer with its prompt, reference answer, reward and verdict, page by page."""
    return Request(
        "GET",
        "/v1/runs/{run}/evaluations/{evaluation}/answers",
        Answers,
        path={"run": run, "evaluation": evaluation},
        query={
            "limit": limit,
            "cursor": cursor,
            "verdict": verdict,
            "category": category,
            "row": row,
        },
    )


def files_get(*, path: str) -> Request[bytes]:
    """Fetch a file of the data volume. A file under `datasets/`, `runs/RUN/model`, `runs/RUN/weights`, `runs/RUN/checkpoints` or
    `runs/RUN/payloads`. Takes requests for one range of bytes."""
    return Request("GET", "/v1/files/{path}", bytes, path={"path": path})


def files_put(*, path: str, content: bytes) -> Request[None]:
    """Store the payload of a group. Take a finished group that is too large for Redis, from the worker that holds the attempt.
    Only workers on hosts without the data volume use this."""
    return Request("PUT", "/v1/files/{path}", None, path={"path": path}, content=content)


def run_logs_list(
    *,
    run: str,
    process: str | None = None,
    level: Literal["debug", "info", "warning", "error"] | None = None,
    newest: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[LogPage]:
    """Read the log of a run. List what the learner's ranks, the rollout workers and their vLLM logged while they worked on
    the run, with warnings of the gateways and the reward service from that time. The newest 5,000
    lines of a run are kept, about, for a week after its last line. Lines of a page stand in the
    order of their arrival."""
    return Request(
        "GET",
        "/v1/runs/{run}/logs",
        LogPage,
        path={"run": run},
        query={
            "process": process,
            "level": level,
            "newest": newest,
            "limit": limit,
            "cursor": cursor,
        },
    )


def logs_list(
    *,
    process: str | None = None,
    level: Literal["debug", "info", "warning", "error"] | None = None,
    newest: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[LogPage]:
    """Read the log of the installation. List what the gateways and the reward service logged, and what learners and workers logged
    while their pool had no run. The newest 10,000 lines are kept, about."""
    return Request(
        "GET",
        "/v1/logs",
        LogPage,
        query={
            "process": process,
            "level": level,
            "newest": newest,
            "limit": limit,
            "cursor": cursor,
        },
    )


def fine_tuned_chat_completions_create(
    *, body: PolicyChatRequest | dict[str, Any]
) -> Request[OpenAIAnswer]:
    """Ask a fine-tuned model. As `POST /v1/chat/completions`."""
    return Request("POST", "/openai/v1/chat/completions", OpenAIAnswer, body=body)


def fine_tuned_completions_create(
    *, body: PolicyCompletionsRequest | dict[str, Any]
) -> Request[OpenAIAnswer]:
    """Have a fine-tuned model continue a text. As `POST /v1/completions`."""
    return Request("POST", "/openai/v1/completions", OpenAIAnswer, body=body)


def fine_tuned_responses_create(
    *, body: PolicyResponsesRequest | dict[str, Any]
) -> Request[ResponsesAnswer]:
    """Ask a fine-tuned model, by the Responses API. As `POST /v1/responses`."""
    return Request("POST", "/openai/v1/responses", ResponsesAnswer, body=body)


def fine_tuning_files_create(
    *,
    files: Files | None = None,
    purpose: str | None = None,
    expires_after_anchor: str | None = None,
    expires_after_seconds: str | None = None,
) -> Request[FineTuningFile]:
    """Upload a file. Check each row of a file, and keep the file. An error names the line."""
    return Request(
        "POST",
        "/openai/v1/files",
        FineTuningFile,
        files=files,
        form={
            "purpose": purpose,
            "expires_after[anchor]": expires_after_anchor,
            "expires_after[seconds]": expires_after_seconds,
        },
        is_keyed=True,
    )


def fine_tuning_files_list(
    *,
    purpose: str | None = None,
    limit: int | None = None,
    order: Literal["asc", "desc"] | None = None,
    after: str | None = None,
) -> Request[FileList]:
    """List files. The files, page by page."""
    return Request(
        "GET",
        "/openai/v1/files",
        FileList,
        query={"purpose": purpose, "limit": limit, "order": order, "after": after},
    )


def fine_tuning_files_get(*, file: str) -> Request[FineTuningFile]:
    """Show a file. A file's name, size and purpose."""
    return Request("GET", "/openai/v1/files/{file}", FineTuningFile, path={"file": file})


def fine_tuning_files_delete(*, file: str) -> Request[DeletedFile]:
    """Delete a file. Delete a file. Datasets that were made of it stay."""
    return Request("DELETE", "/openai/v1/files/{file}", DeletedFile, path={"file": file})


def fine_tuning_files_download(*, file: str) -> Request[bytes]:
    """Download a file. The file as it was sent."""
    return Request("GET", "/openai/v1/files/{file}/content", bytes, path={"file": file})


def graders_validate(*, body: GraderToValidate | dict[str, Any]) -> Request[ValidatedGrader]:
    """Validate a grader. Check a grader object: its fields, templates, formula and Python program, and whether its
    models are there. Nothing is graded."""
    return Request(
        "POST", "/openai/v1/fine_tuning/alpha/graders/validate", ValidatedGrader, body=body
    )


def graders_run(*, body: GraderToRun | dict[str, Any]) -> Request[GraderRunAnswer]:
    """Run a grader. Grade one answer. An error of the grader has the reward 0 and a flag in `metadata.errors`; in
    a run such an answer has no reward."""
    return Request("POST", "/openai/v1/fine_tuning/alpha/graders/run", GraderRunAnswer, body=body)


def fine_tuning_jobs_create(*, body: NewFineTuningJob | dict[str, Any]) -> Request[FineTuningJob]:
    """Create a job. Check the files, copy their rows into datasets, and queue a run. Whatever cannot be honoured
    is refused, and nothing is kept then."""
    return Request("POST", "/openai/v1/fine_tuning/jobs", FineTuningJob, body=body, is_keyed=True)


def fine_tuning_jobs_list(
    *, after: str | None = None, limit: int | None = None, metadata: str | None = None
) -> Request[JobList]:
    """List jobs. The jobs, the newest first. A job whose run was deleted is gone."""
    return Request(
        "GET",
        "/openai/v1/fine_tuning/jobs",
        JobList,
        query={"after": after, "limit": limit, "metadata": metadata},
    )


def fine_tuning_jobs_get(*, job: str) -> Request[FineTuningJob]:
    """Show a job. A job's status, model and results."""
    return Request("GET", "/openai/v1/fine_tuning/jobs/{job}", FineTuningJob, path={"job": job})


def fine_tuning_jobs_cancel(*, job: str) -> Request[FineTuningJob]:
    """Cancel a job. End a job after its present step. Its checkpoints stay. Cancelling twice is fine."""
    return Request(
        "POST", "/openai/v1/fine_tuning/jobs/{job}/cancel", FineTuningJob, path={"job": job}
    )


def fine_tuning_jobs_pause(*, job: str) -> Request[FineTuningJob]:
    """Pause a job. Let a job that runs stand still after its present step. It keeps its place and its GPUs."""
    return Request(
        "POST", "/openai/v1/fine_tuning/jobs/{job}/pause", FineTuningJob, path={"job": job}
    )


def fine_tuning_jobs_resume(*, job: str) -> Request[FineTuningJob]:
    """Resume a job. Let a paused job go on."""
    return Request(
        "POST", "/openai/v1/fine_tuning/jobs/{job}/resume", FineTuningJob, path={"job": job}
    )


def fine_tuning_events_list(
    *, job: str, after: str | None = None, limit: int | None = None, stream: bool | None = None
) -> Request[JobEventList]:
    """List a job's events. The job's events, the newest first: steps with their metrics, checkpoints, warnings."""
    return Request(
        "GET",
        "/openai/v1/fine_tuning/jobs/{job}/events",
        JobEventList,
        path={"job": job},
        query={"after": after, "limit": limit, "stream": stream},
    )


def fine_tuning_checkpoints_list(
    *, job: str, after: str | None = None, limit: int | None = None
) -> Request[CheckpointPage]:
    """List a job's checkpoints. The checkpoints that are kept, the newest first. Each is a model."""
    return Request(
        "GET",
        "/openai/v1/fine_tuning/jobs/{job}/checkpoints",
        CheckpointPage,
        path={"job": job},
        query={"after": after, "limit": limit},
    )


def fine_tuned_models_list() -> Request[OpenAIModelList]:
    """List models. The fine-tuned models, each `ft:BASE:ORG:SUFFIX:ID`, and what jobs may start from: the models
    that runs have started from, and each finished run as `run:RUN`. Any other model that
    `headrace submit` takes may be named, too: a folder, or a name of the hub."""
    return Request("GET", "/openai/v1/models", OpenAIModelList)


def fine_tuned_models_get(*, name: str) -> Request[OpenAIModel]:
    """Show a model. A model of the list, or a kept checkpoint."""
    return Request("GET", "/openai/v1/models/{name}", OpenAIModel, path={"name": name})


def fine_tuned_models_delete(*, name: str) -> Request[DeletedOpenAIModel]:
    """Delete a fine-tuned model. Delete the model and its run, as `DELETE /v1/runs/RUN` does: its metrics and checkpoints go
    with it. The files of its job stay."""
    return Request("DELETE", "/openai/v1/models/{name}", DeletedOpenAIModel, path={"name": name})


def fine_tuned_permissions_list(
    *,
    name: str,
    project_id: str | None = None,
    after: str | None = None,
    limit: int | None = None,
    order: Literal["ascending", "descending"] | None = None,
) -> Request[PermissionPage]:
    """List a model's permissions. The projects that may use a model besides the project of its run. Keys without a project may
    use every model. A permission is for the run's model and all its checkpoints."""
    return Request(
        "GET",
        "/openai/v1/fine_tuning/checkpoints/{name}/permissions",
        PermissionPage,
        path={"name": name},
        query={"project_id": project_id, "after": after, "limit": limit, "order": order},
    )


def fine_tuned_permissions_create(
    *, name: str, body: PermissionsRequest | dict[str, Any]
) -> Request[PermissionPage]:
    """Permit projects to use a model. Permit the keys of projects to ask the model, and its checkpoints. A permission that is there
    stays."""
    return Request(
        "POST",
        "/openai/v1/fine_tuning/checkpoints/{name}/permissions",
        PermissionPage,
        path={"name": name},
        body=body,
    )


def fine_tuned_permissions_delete(*, name: str, permission: str) -> Request[DeletedPermission]:
    """Take a permission back. The project's keys may not use the model any more."""
    return Request(
        "DELETE",
        "/openai/v1/fine_tuning/checkpoints/{name}/permissions/{permission}",
        DeletedPermission,
        path={"name": name, "permission": permission},
    )


def fine_tuning_uploads_create(*, body: NewUpload | dict[str, Any]) -> Request[FineTuningUpload]:
    """Begin an upload. Begin a file that comes in parts, within an hour."""
    return Request("POST", "/openai/v1/uploads", FineTuningUpload, body=body, is_keyed=True)


def fine_tuning_parts_create(*, upload: str, files: Files | None = None) -> Request[FineTuningPart]:
    """Add a part. Keep a part of a file. Parts may come in any order, and at the same time."""
    return Request(
        "POST",
        "/openai/v1/uploads/{upload}/parts",
        FineTuningPart,
        path={"upload": upload},
        files=files,
        form={},
        is_keyed=True,
    )


def fine_tuning_uploads_complete(
    *, upload: str, body: PartsOfUpload | dict[str, Any]
) -> Request[FineTuningUpload]:
    """Complete an upload. Make a file of parts, in the order of `part_ids`. The same request again gets the same
    file."""
    return Request(
        "POST",
        "/openai/v1/uploads/{upload}/complete",
        FineTuningUpload,
        path={"upload": upload},
        body=body,
    )


def fine_tuning_uploads_cancel(*, upload: str) -> Request[FineTuningUpload]:
    """Cancel an upload. Forget the parts of a file."""
    return Request(
        "POST", "/openai/v1/uploads/{upload}/cancel", FineTuningUpload, path={"upload": upload}
    )


def health_get() -> Request[Health]:
    """Alive. The process answers. Says nothing about what it depends on."""
    return Request("GET", "/healthz", Health)


def readiness_get() -> Request[Health]:
    """Ready. Redis answers and keeps what it acknowledges, and the data volume can be written; else 503
    with the reason."""
    return Request("GET", "/readyz", Health)


def prometheus_get() -> Request[str]:
    """Prometheus metrics. Runs by state, the newest metrics of live runs, workers; in Prometheus' text format."""
    return Request("GET", "/metrics", str)


def models_list(
    *,
    limit: int | None = None,
    after_id: str | None = None,
    before_id: str | None = None,
    anthropic_version: str | None = None,
) -> Request[OpenAIModels | AnthropicModels]:
    """Policies that can be asked. The runs whose policy a worker serves now, and the versions of each that can be asked for. A
    request with the header `anthropic-version` gets the list in the form of Anthropic's API."""
    return Request(
        "GET",
        "/v1/models",
        OpenAIModels | AnthropicModels,
        query={"limit": limit, "after_id": after_id, "before_id": before_id},
        header={"anthropic-version": anthropic_version},
    )


def chat_completions_create(*, body: PolicyChatRequest | dict[str, Any]) -> Request[OpenAIAnswer]:
    """Ask the model of a run. OpenAI's chat completions, answered by the policy that a run trains, or by a checkpoint of a
    run. Training comes first, and these calls are not trained. The `model` of the answer names the
    version that began it. The model's chat template writes the prompt; the run's `data.template`
    and `data.system` are not added."""
    return Request("POST", "/v1/chat/completions", OpenAIAnswer, body=body, is_repeatable=True)


def completions_create(*, body: PolicyCompletionsRequest | dict[str, Any]) -> Request[OpenAIAnswer]:
    """Have the model of a run continue a text. OpenAI's completions, of a text or of token ids, without a chat template."""
    return Request("POST", "/v1/completions", OpenAIAnswer, body=body)


def messages_create(
    *, beta: str | None = None, body: PolicyMessagesRequest | dict[str, Any]
) -> Request[MessagesAnswer]:
    """Ask a run's policy, by Anthropic's API. Anthropic's Messages, answered as `/v1/chat/completions` answers the same messages."""
    return Request("POST", "/v1/messages", MessagesAnswer, query={"beta": beta}, body=body)


def messages_count(
    *, beta: str | None = None, body: PolicyCountRequest | dict[str, Any]
) -> Request[CountAnswer]:
    """Count a prompt's tokens, by Anthropic's API. The number of tokens of the prompt that `/v1/messages` would make. Nothing is sampled."""
    return Request(
        "POST", "/v1/messages/count_tokens", CountAnswer, query={"beta": beta}, body=body
    )


def responses_create(*, body: PolicyResponsesRequest | dict[str, Any]) -> Request[ResponsesAnswer]:
    """Ask a run's policy, by OpenAI's Responses API. OpenAI's Responses, answered as `/v1/chat/completions` answers the same messages. Nothing is
    kept: send the whole conversation, or ask in a session, which keeps its responses."""
    return Request("POST", "/v1/responses", ResponsesAnswer, body=body)


def recipes_list(*, limit: int | None = None, cursor: str | None = None) -> Request[RecipeList]:
    """List recipes. All recipes, each with when to use it, page by page."""
    return Request("GET", "/v1/recipes", RecipeList, query={"limit": limit, "cursor": cursor})


def recipes_get(*, name: str) -> Request[RecipeModel]:
    """Show a recipe. One recipe with its commented YAML, to copy and change."""
    return Request("GET", "/v1/recipes/{name}", RecipeModel, path={"name": name})


def runs_audit(*, run: str) -> Request[Audit]:
    """Audit a run. Account for every task of a run, and of the runs that it continues, from the ledger and the
    stores, not from counters. `lost` and `duplicated` are always 0; `unknown` counts tasks whose
    entries Redis has lost."""
    return Request("GET", "/v1/runs/{run}/audit", Audit, path={"run": run})


def run_checkpoints_list(
    *, run: str, limit: int | None = None, cursor: str | None = None
) -> Request[CheckpointList]:
    """List checkpoints. The checkpoints that the run has kept. `RUN@STEP` names one of them wherever a model or a run
    to resume is named."""
    return Request(
        "GET",
        "/v1/runs/{run}/checkpoints",
        CheckpointList,
        path={"run": run},
        query={"limit": limit, "cursor": cursor},
    )


def run_checkpoints_pin(*, step: int, run: str) -> Request[Checkpoint]:
    """Pin a checkpoint. Keep a checkpoint as long as the run exists, in addition to the
    `training.keep_checkpoints` newest ones."""
    return Request(
        "POST",
        "/v1/runs/{run}/checkpoints/{step}/pin",
        Checkpoint,
        path={"step": step, "run": run},
        is_keyed=True,
    )


def run_checkpoints_unpin(*, step: int, run: str) -> Request[Checkpoint]:
    """Unpin a checkpoint. Take the pin away: the checkpoint goes when a newer one takes its place. Refused (409) while
    an unfinished fork has no checkpoint of its own."""
    return Request(
        "POST",
        "/v1/runs/{run}/checkpoints/{step}/unpin",
        Checkpoint,
        path={"step": step, "run": run},
        is_keyed=True,
    )


def run_checkpoints_download(*, step: int, run: str) -> Request[bytes]:
    """Download a checkpoint. A checkpoint as a tar archive, with one folder. The archive is made while it is sent."""
    return Request(
        "GET", "/v1/runs/{run}/checkpoints/{step}/download", bytes, path={"step": step, "run": run}
    )


def run_events_follow(
    *, run: str, newest: int | None = None, last_event_id: str | None = None
) -> Request[EventStream]:
    """Follow a run. All events of a run from its first (the store keeps about the newest 20,000), or after
    `Last-Event-ID`, or the `newest` ones; and then as they happen. Each
    has its kind as `event`, and a RunEvent as `data`. Ends when the run is
    over; ends early where Redis goes away: come back with the last id."""
    return Request(
        "GET",
        "/v1/runs/{run}/events",
        EventStream,
        path={"run": run},
        query={"newest": newest},
        header={"last-event-id": last_event_id},
    )


def runs_fork(
    *, run: str, dry_run: bool | None = None, body: Fork | dict[str, Any]
) -> Request[RunRecord | DryRun]:
    """Fork a run. Queue a new run that goes on from a kept checkpoint of a run, with changes of its config. The
    run stays as it is, and may train on. The fork has the weights, the optimizer's state, the step
    and the order of the rows of the checkpoint; a key that these depend on cannot change (422).
    Tasks that the run had open, or trained after that step, are sampled again for the fork.

    The checkpoint is pinned, and the run cannot be deleted before its forks are. Any number of
    forks may start from one checkpoint."""
    return Request(
        "POST",
        "/v1/runs/{run}/fork",
        RunRecord | DryRun,
        path={"run": run},
        query={"dry_run": dry_run},
        body=body,
        is_keyed=True,
    )


def run_metrics_list(
    *,
    run: str,
    name: list[str] | None = None,
    after_step: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[RunMetrics]:
    """Metrics of a run. List the learner's metrics of each step in the order of writing, page by page. An evaluation
    may come after steps that were trained meanwhile."""
    return Request(
        "GET",
        "/v1/runs/{run}/metrics",
        RunMetrics,
        path={"run": run},
        query={"name": name, "after_step": after_step, "limit": limit, "cursor": cursor},
    )


def runs_pause(*, run: str) -> Request[RunRecord]:
    """Pause a run. Let a run stand still until it is resumed. Workers begin no new group from now on, and
    finish the groups in flight. Its learner waits after its present step, and the run is `paused`
    then. It keeps its place: its learner and workers take no other run of the pool. Its model stays
    in memory and can be chatted with. The run stays paused when a process dies and starts again.
    Its config can be changed meanwhile, and it can be cancelled. Pausing twice is fine."""
    return Request("POST", "/v1/runs/{run}/pause", RunRecord, path={"run": run}, is_keyed=True)


def runs_resume(*, run: str) -> Request[RunRecord]:
    """Resume a paused run. Let a paused run go on, as the same run. A run that was not paused stays as
    it is. A run that is over is continued by a new one: `POST /v1/runs` with `resume_from`."""
    return Request("POST", "/v1/runs/{run}/resume", RunRecord, path={"run": run}, is_keyed=True)


def runs_preview(*, body: PreviewRequest | dict[str, Any]) -> Request[RunPreview]:
    """Show rows as a run's model will read them. Render rows of the dataset of a submission, with the chat template and the tokenizer of its
    model; nothing is queued. For a supervised run each row says which parts are trained. For other
    runs each row says what the verifiers make of the reference, given as an answer."""
    return Request("POST", "/v1/preview", RunPreview, body=body, is_repeatable=True)


def run_reports_get(*, run: str, against: str | None = None) -> Request[str]:
    """Report of a run. A page that needs no other file: results, curves, answers, what the config changes, where the
    time went, and how to repeat the run. An unfinished run has a report of its state now."""
    return Request(
        "GET", "/v1/runs/{run}/report", str, path={"run": run}, query={"against": against}
    )


def chain_reports_get(*, chain: str) -> Request[str]:
    """Report of a chain. One page with all steps of the chain."""
    return Request("GET", "/v1/chains/{chain}/report", str, path={"chain": chain})


def rollouts_list(
    *,
    run: str,
    step: int | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    status: RolloutStatus | None = None,
    row: int | None = None,
    dataset: str | None = None,
    group: int | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    text: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[Rollouts]:
    """Trained answers. Answers that the run was trained on, filtered, the newest step first. A run keeps the share
    `rollout.keep_share` of its groups; groups that were dropped before training are not here."""
    return Request(
        "GET",
        "/v1/runs/{run}/rollouts",
        Rollouts,
        path={"run": run},
        query={
            "step": step,
            "min_reward": min_reward,
            "max_reward": max_reward,
            "status": status,
            "row": row,
            "dataset": dataset,
            "group": group,
            "min_tokens": min_tokens,
            "max_tokens": max_tokens,
            "text": text,
            "limit": limit,
            "cursor": cursor,
        },
    )


def rollouts_download(*, step: int, run: str) -> Request[bytes]:
    """Trained answers of a step as Parquet. All kept answers of a step with their tokens, as one Parquet file: load it with
    `pandas.read_parquet` or `polars.read_parquet`."""
    return Request("GET", "/v1/runs/{run}/rollouts/{step}", bytes, path={"step": step, "run": run})


def rollouts_get(*, step: int, group: int, run: str) -> Request[RolloutGroup]:
    """A trained group. A group with all its answers: each token's text, log-probabilities, entropy and version, and
    what the answer earned."""
    return Request(
        "GET",
        "/v1/runs/{run}/rollouts/{step}/{group}",
        RolloutGroup,
        path={"step": step, "group": group, "run": run},
    )


def runs_create(
    *, dry_run: bool | None = None, body: RunSubmission | dict[str, Any]
) -> Request[RunRecord | DryRun]:
    """Submit a run. Check a run's config and queue it. A refusal (422) lists every problem with its key path; one
    may be that the run cannot fit on the GPUs of its pool. With `dry_run` nothing is queued, and
    the answer (200) is the whole config and what the run needs: memory of each GPU, disk and time,
    and what to change if it does not fit."""
    return Request(
        "POST", "/v1/runs", RunRecord | DryRun, query={"dry_run": dry_run}, body=body, is_keyed=True
    )


def runs_list(
    *,
    q: str | None = None,
    state: list[RunState] | None = None,
    pool: str | None = None,
    name: str | None = None,
    tag: list[str] | None = None,
    recipe: str | None = None,
    model: str | None = None,
    dataset: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Request[RunList]:
    """List runs. Runs without their configs, newest first, page by page. The answer has an `ETag`: asked again
    with `If-None-Match`, an unchanged page is a 304 without a body."""
    return Request(
        "GET",
        "/v1/runs",
        RunList,
        query={
            "q": q,
            "state": state,
            "pool": pool,
            "name": name,
            "tag": tag,
            "recipe": recipe,
            "model": model,
            "dataset": dataset,
            "limit": limit,
            "cursor": cursor,
        },
    )


def runs_get(*, run: str) -> Request[RunRecord]:
    """Show a run. Show one run: its state, the reason for it, its config and its progress."""
    return Request("GET", "/v1/runs/{run}", RunRecord, path={"run": run})


def runs_update(*, run: str, body: RunPatch | dict[str, Any]) -> Request[RunRecord]:
    """Change a run. Change a run's name, tags, notes, or place in the queue; and of a run that waits or trains
    some values of its config. The learner takes these at the next step that it plans. `edits` says
    from which step each holds, and a step that is trained again after a crash has the values that
    it had. A request changes all its values, or none. Each change is an event."""
    return Request(
        "PATCH", "/v1/runs/{run}", RunRecord, path={"run": run}, body=body, is_keyed=True
    )


def runs_delete(*, run: str) -> Request[None]:
    """Delete a run. Delete a run that is over: its record, metrics, answers, checkpoints, weights, and its
    ledger. Its dataset stays. Refused (409) while another run continues it, or while an unfinished
    run starts from its model. A finished run that started from its model stays readable. It stays
    resumable if it has a checkpoint and no reference (KL or DPO without adapters)."""
    return Request("DELETE", "/v1/runs/{run}", None, path={"run": run}, is_keyed=True)


def runs_cancel(*, run: str, now: bool | None = None) -> Request[CancelledRun]:
    """Cancel a run. Ask a run to end. A queued run ends at once; a run that trains is `cancelling` until it has
    written a checkpoint. Cancelling twice is fine; a run that has succeeded or failed cannot be
    cancelled (409)."""
    return Request(
        "POST",
        "/v1/runs/{run}/cancel",
        CancelledRun,
        path={"run": run},
        query={"now": now},
        is_keyed=True,
    )


def run_samples_list(
    *, run: str, step: int | None = None, limit: int | None = None, cursor: str | None = None
) -> Request[RunSamples]:
    """Sampled answers. Some completions of each trained batch with their rewards, newest first: the best and the
    worst of one prompt, and others. `GET /v1/runs/{run}/rollouts` has all that are kept."""
    return Request(
        "GET",
        "/v1/runs/{run}/samples",
        RunSamples,
        path={"run": run},
        query={"step": step, "limit": limit, "cursor": cursor},
    )


def series_get(
    *,
    runs: list[str],
    names: list[str],
    points: int | None = None,
    x: Literal["step", "time", "tokens", "samples"] | None = None,
    from_: float | None = None,
    to: float | None = None,
) -> Request[SeriesAnswer]:
    """Metrics for charts. Metrics of several runs, each with at most `points` values. More values are cut into buckets
    of equal width, the same for all series of the request, with the mean, the least and the largest
    value of each. An answer has at most 5,000,000 values. It has an `ETag`. For exact values use
    `GET /v1/runs/RUN/metrics`."""
    return Request(
        "GET",
        "/v1/series",
        SeriesAnswer,
        query={"runs": runs, "names": names, "points": points, "x": x, "from": from_, "to": to},
    )


def series_names_get(*, run: str) -> Request[SeriesNames]:
    """Names and newest values of a run's metrics. Each metric that the run has written, with its newest value."""
    return Request("GET", "/v1/runs/{run}/series/names", SeriesNames, path={"run": run})


def runs_diagnose(*, run: str) -> Request[Why]:
    """Why a run is slow or stuck. The named bottleneck and its reason in words, the task that has been in flight longest,
    the pool's workers and learner, and the newest warnings and errors."""
    return Request("GET", "/v1/runs/{run}/why", Why, path={"run": run})


def schema_get() -> Request[JsonSchema]:
    """Show the run config as JSON Schema. Every key of a run's config with its type, its default and what it does; for forms and
    editors. `rl` and `sft` are its two forms."""
    return Request("GET", "/v1/schema", JsonSchema)


def sessions_create(*, run: str, body: NewSession | dict[str, Any]) -> Request[OpenedSession]:
    """Open a session of live traffic. Open a session for one conversation of an application, in a run with `data.source: sessions`.
    It is trained once it has ended and its reward has come; both may take hours. Without a reward
    by `data.reward_deadline` it is discarded."""
    return Request("POST", "/v1/runs/{run}/sessions", OpenedSession, path={"run": run}, body=body)


def session_models_list(
    *,
    session: str,
    limit: int | None = None,
    after_id: str | None = None,
    before_id: str | None = None,
    anthropic_version: str | None = None,
) -> Request[OpenAIModels | AnthropicModels]:
    """The policy, as an OpenAI model. One model: the run's policy, in its newest version. A request with the header
    `anthropic-version` gets it in the form of Anthropic's API."""
    return Request(
        "GET",
        "/v1/sessions/{session}/v1/models",
        OpenAIModels | AnthropicModels,
        path={"session": session},
        query={"limit": limit, "after_id": after_id, "before_id": before_id},
        header={"anthropic-version": anthropic_version},
    )


def session_chat_completions_create(
    *, session: str, body: ChatRequest | dict[str, Any]
) -> Request[OpenAIAnswer]:
    """A turn of the session. OpenAI's chat completions. A request continues the conversation of the session that its
    messages begin with, or begins one. The same request again gets the recorded answer."""
    return Request(
        "POST",
        "/v1/sessions/{session}/v1/chat/completions",
        OpenAIAnswer,
        path={"session": session},
        body=body,
        is_repeatable=True,
    )


def session_completions_create(
    *, session: str, body: CompletionsRequest | dict[str, Any]
) -> Request[OpenAIAnswer]:
    """A turn of the session, as plain text. OpenAI's completions, of a text or of token ids. A request continues the longest text of the
    session that its prompt begins with, or begins one."""
    return Request(
        "POST",
        "/v1/sessions/{session}/v1/completions",
        OpenAIAnswer,
        path={"session": session},
        body=body,
    )


def session_messages_create(
    *, session: str, beta: str | None = None, body: MessagesRequest | dict[str, Any]
) -> Request[MessagesAnswer]:
    """A turn of the session, by Anthropic's API. Anthropic's Messages. A request continues the conversation of the session that its messages
    begin with, or begins one, whichever API the earlier turns came by."""
    return Request(
        "POST",
        "/v1/sessions/{session}/v1/messages",
        MessagesAnswer,
        path={"session": session},
        query={"beta": beta},
        body=body,
    )


def session_messages_count(
    *, session: str, beta: str | None = None, body: CountRequest | dict[str, Any]
) -> Request[CountAnswer]:
    """Count a prompt's tokens, by Anthropic's API. The number of tokens of these messages in the chat template. It is no turn: nothing is
    sampled. The prompt of a later turn has the tokens that were sampled, which may be others."""
    return Request(
        "POST",
        "/v1/sessions/{session}/v1/messages/count_tokens",
        CountAnswer,
        path={"session": session},
        query={"beta": beta},
        body=body,
    )


def sessions_reward(*, session: str, body: RewardRequest | dict[str, Any]) -> Request[RewardAnswer]:
    """What a session has earned. `{"reward": 0.5}`, or `{"components": {"format": 0.2, "right": 1}}`, whose sum is the reward,
    or `{"reward": null, "error": "the tool broke"}`: the session is then not trained. The first one
    counts. A session without any is scored by the run's verifiers, by its last answer; one that an
    application has opened waits for it until `data.reward_deadline`."""
    return Request(
        "POST",
        "/v1/sessions/{session}/reward",
        RewardAnswer,
        path={"session": session},
        body=body,
        is_repeatable=True,
    )


def sessions_end(*, session: str) -> Request[EndAnswer]:
    """End a session. The session takes no calls any more. With the last one of its group, the group is scored and
    completed. Ending it again changes nothing."""
    return Request(
        "POST",
        "/v1/sessions/{session}/end",
        EndAnswer,
        path={"session": session},
        is_repeatable=True,
    )


def groups_lease(*, run: str) -> Request[LeasedGroup]:
    """Lease a group of sessions for an agent. Lease the next row of a run with `rollout.episode: sessions`, with a session for each
    completion of its group. The group is completed when its last session ends. It keeps its lease
    while calls come, and is leased again when none does for `idle_seconds`."""
    return Request("POST", "/v1/runs/{run}/groups/lease", LeasedGroup, path={"run": run})


def groups_create(*, run: str, body: OwnPrompt | dict[str, Any]) -> Request[LeasedGroup]:
    """Lease a group of sessions for a prompt of the client's own. Lease a group for the client's prompt instead of the dataset's. The prompt takes the place of
    the next task in the run's order, so that admission, staleness and the audit count it as any
    other task, once. If its sessions are lost, the task is leased again with the dataset's own row.
    A request with a `name` may be sent again."""
    return Request("POST", "/v1/runs/{run}/groups", LeasedGroup, path={"run": run}, body=body)


def groups_release(*, attempt: str, run: str) -> Request[None]:
    """Release a leased group. Release an abandoned group: its sessions refuse calls, and its task is leased again at once
    instead of after `idle_seconds`. A group that is done stays done."""
    return Request(
        "POST",
        "/v1/runs/{run}/groups/{attempt}/release",
        None,
        path={"attempt": attempt, "run": run},
        is_repeatable=True,
    )


def session_responses_create(
    *, session: str, body: SessionResponsesRequest | dict[str, Any]
) -> Request[ResponsesAnswer]:
    """A turn of the session, by OpenAI's Responses API. OpenAI's Responses. A request continues the response or the conversation that it names, or
    the conversation of the session that its items begin with, whichever API the earlier turns came
    by. It is answered by one turn."""
    return Request(
        "POST",
        "/v1/sessions/{session}/v1/responses",
        ResponsesAnswer,
        path={"session": session},
        body=body,
    )


def session_responses_get(*, response: str, session: str) -> Request[ResponsesAnswer]:
    """A response that the session keeps. The response as it was answered, for an hour after the session's last call."""
    return Request(
        "GET",
        "/v1/sessions/{session}/v1/responses/{response}",
        ResponsesAnswer,
        path={"response": response, "session": session},
    )


def session_responses_delete(*, response: str, session: str) -> Request[Deleted]:
    """Delete a response. It can no longer be read or continued. Its turn is trained nevertheless."""
    return Request(
        "DELETE",
        "/v1/sessions/{session}/v1/responses/{response}",
        Deleted,
        path={"response": response, "session": session},
    )


def session_responses_input(
    *,
    response: str,
    session: str,
    order: Literal["asc", "desc"] | None = None,
    limit: int | None = None,
) -> Request[Items]:
    """The items of a response's request. What the request of the response brought, without the conversation that it continued."""
    return Request(
        "GET",
        "/v1/sessions/{session}/v1/responses/{response}/input_items",
        Items,
        path={"response": response, "session": session},
        query={"order": order, "limit": limit},
    )


def session_conversations_create(
    *, session: str, body: NewConversation | dict[str, Any]
) -> Request[ConversationAnswer]:
    """Begin a conversation that the session keeps. A request of the Responses API continues it by its id, and adds its items and answer."""
    return Request(
        "POST",
        "/v1/sessions/{session}/v1/conversations",
        ConversationAnswer,
        path={"session": session},
        body=body,
    )


def session_conversations_get(*, conversation: str, session: str) -> Request[ConversationAnswer]:
    """A conversation that the session keeps. Its metadata. Its items have an address of their own."""
    return Request(
        "GET",
        "/v1/sessions/{session}/v1/conversations/{conversation}",
        ConversationAnswer,
        path={"conversation": conversation, "session": session},
    )


def session_conversations_delete(*, conversation: str, session: str) -> Request[Deleted]:
    """Delete a conversation. Its responses stay, and are trained."""
    return Request(
        "DELETE",
        "/v1/sessions/{session}/v1/conversations/{conversation}",
        Deleted,
        path={"conversation": conversation, "session": session},
    )


def session_conversations_items(
    *,
    conversation: str,
    session: str,
    order: Literal["asc", "desc"] | None = None,
    limit: int | None = None,
) -> Request[Items]:
    """The items of a conversation. All messages, calls and outputs of the conversation."""
    return Request(
        "GET",
        "/v1/sessions/{session}/v1/conversations/{conversation}/items",
        Items,
        path={"conversation": conversation, "session": session},
        query={"order": order, "limit": limit},
    )


def session_conversations_add(
    *, conversation: str, session: str, body: NewItems | dict[str, Any]
) -> Request[Items]:
    """Add items to a conversation. The next request continues the conversation with them. A repeated request with its
    `Idempotency-Key` adds them once. They count as bytes of the session's turns."""
    return Request(
        "POST",
        "/v1/sessions/{session}/v1/conversations/{conversation}/items",
        Items,
        path={"conversation": conversation, "session": session},
        body=body,
    )


def changes_follow(
    *, run: list[str] | None = None, last_event_id: str | None = None
) -> Request[EventStream]:
    """Follow everything. Tell what changes from now on, or after `Last-Event-ID`, without an end.

    - `runs`: the runs that have changed and the ids of deleted ones, at most once a second.
    - `event`: an event of a run that `run` names.
    - `workers`: all workers, when one has changed, at most every 2 s.
    - `reset`: changes may be missing, because the place of `Last-Event-ID` is gone, this client was
      too slow, or Redis was away. Load the lists again; the stream goes on.

    Open the stream first and load lists then: nothing is lost between the two. Each message's `id`
    is the place of this client, for any gateway. A comment comes after 15 s without a message."""
    return Request(
        "GET",
        "/v1/stream",
        EventStream,
        query={"run": run},
        header={"last-event-id": last_event_id},
    )


def verifiers_list(*, limit: int | None = None, cursor: str | None = None) -> Request[VerifierPage]:
    """List verifiers. The verifiers that a reward may name, with the JSON Schema of their parameters, page by page.
    Versions of a verifier that was added stand beside it, as NAME@VERSION."""
    return Request("GET", "/v1/verifiers", VerifierPage, query={"limit": limit, "cursor": cursor})


def verifiers_create(*, body: NewVerifier | dict[str, Any]) -> Request[MadeVerifier]:
    """Add a verifier. Add a Python file as the next version of its verifier: a class, or a plain function. The
    reward service loads it and runs its functions `test_…`; if one fails, nothing is added. Then it
    starts again in a few seconds, while workers wait. Off unless the reward service's environment
    has HEADRACE_VERIFIER_UPLOADS=true."""
    return Request("POST", "/v1/verifiers", MadeVerifier, body=body, is_keyed=True)


def verifiers_delete(*, verifier: str) -> Request[None]:
    """Remove a verifier that was added. Remove NAME with all of its versions, or NAME@VERSION."""
    return Request(
        "DELETE", "/v1/verifiers/{verifier}", None, path={"verifier": verifier}, is_keyed=True
    )


def verifiers_score(
    *, verifier: str, body: AnswerToScore | dict[str, Any]
) -> Request[ScoredAnswer]:
    """Score an answer. Score one answer by a row of a dataset, or by the reference in the request. Nothing is
    kept."""
    return Request(
        "POST",
        "/v1/verifiers/{verifier}/score",
        ScoredAnswer,
        path={"verifier": verifier},
        body=body,
        is_repeatable=True,
    )


def workers_list(
    *, pool: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Request[WorkerList]:
    """List workers. Rollout workers, of one pool or of all, page by page."""
    return Request(
        "GET", "/v1/workers", WorkerList, query={"pool": pool, "limit": limit, "cursor": cursor}
    )


def loads_get(*, pool: str | None = None) -> Request[PoolLoad]:
    """How much a pool has to do. For an autoscaler such as KEDA. An unknown pool has nothing to do."""
    return Request("GET", "/v1/load", PoolLoad, query={"pool": pool})
