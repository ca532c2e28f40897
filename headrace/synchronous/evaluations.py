"""Evaluations: of models, and those that runs make while they train. `make client` makes this file (deploy/client_code.py)."""
# ruff: noqa: E501, UP028

from collections.abc import Iterator
from typing import Any

from headrace import operations
from headrace.errors import NotFound
from headrace.models import AnsweredRow, EvaluationComparison, EvaluationRecord, ModelEvaluation
from headrace.synchronous.connection import Connection


class Evaluations:
    """The evaluations of a gateway. An evaluation of a model is a run of zero steps: `run` is the
    run's id or name, here and in `client.runs`. Any other run has the evaluations of its held-out
    sets."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    def submit(self, model: str, dataset: str, **options: Any) -> ModelEvaluation:
        """Evaluate a model on a dataset. `model`: a run for what it made, `RUN@STEP`, a folder or
        a hub name. `options`: samples, rows, temperature, max_tokens, category, verifier, like,
        config, name, pool, priority. `client.runs.get(made.run.id).wait()` waits for its end."""
        body = {"model": model, "dataset": dataset, **options}
        return self._client.send(operations.evaluations_create(body=body))

    def list(self) -> Iterator[ModelEvaluation]:
        """Yield the evaluations of models, newest first."""
        for page in self._client.pages(operations.evaluations_list):
            for record in page.evaluations:
                yield record

    def get(self, run: str) -> ModelEvaluation:
        """Return an evaluation of a model: its state, its progress and its figures."""
        return self._client.send(operations.evaluations_get(run=run))

    def answers(
        self, run: str, evaluation: str | None = None, **filters: Any
    ) -> Iterator[AnsweredRow]:
        """Yield the answered rows of an evaluation, in the dataset's order. `evaluation`: its id
        (default: the newest evaluation of the run). `filters`: verdict (correct, wrong, mixed,
        unscored), category, row."""
        id = evaluation or (self._newest(run)).id
        pages = self._client.pages(
            operations.evaluation_answers_list, run=run, evaluation=id, **filters
        )
        for page in pages:
            for row in page.rows:
                yield row

    def compare(
        self, run: str, against: str, *, evaluation: str | None = None, limit: int | None = None
    ) -> EvaluationComparison:
        """Compare an evaluation with another one, row by row, with a paired test. `against`: a run
        for its newest evaluation on the same dataset, or `RUN/ID`. `evaluation`: the id of this one
        (default: the newest evaluation of `run`). `limit`: changed rows in the answer, at most."""
        id = evaluation or (self._newest(run)).id
        request = operations.run_evaluations_compare(
            run=run, evaluation=id, against=against, limit=limit
        )
        return self._client.send(request)

    def _newest(self, run: str) -> EvaluationRecord:
        """Return the newest evaluation of a run that is done, or else the newest one."""
        newest: EvaluationRecord | None = None
        record: EvaluationRecord
        for page in self._client.pages(operations.run_evaluations_list, run=run):
            for record in page.evaluations:
                if record.state == "done":
                    return record
                newest = newest or record
        if newest is None:
            raise NotFound(f"run {run} has no evaluation yet")
        return newest
