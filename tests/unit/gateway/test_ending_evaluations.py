"""An evaluation that ends during a request is found. A damaged file of answers is named."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.contracts.evaluation import EvaluationRequest, record_of
from services.contracts.weights import WeightManifest
from services.evaluations import folder_of, part_path, write_part, write_result
from services.gateway.routes.evaluations import run_evaluations as routes
from services.http import Problem
from services.volume import Volume
from tests.evaluating import answered, request

RUN: Any = SimpleNamespace(id="r")


class Ending:
    """A run with one evaluation in Redis, which ends after it was read `after` times."""

    def __init__(self, root: Path, after: int) -> None:
        manifest = WeightManifest("r", 20, "9f3a1c", "full", [], 0, "model")
        self.request: EvaluationRequest = request(manifest)
        self.id = self.request.id
        self.deps: Any = SimpleNamespace(
            volume=Volume(root), store=SimpleNamespace(evaluations=self)
        )
        self._root, self._left = root, after
        for number in (1, 2):
            write_part(part_path(self.folder, number), [answered(number, "correct")])

    @property
    def folder(self) -> Path:
        return folder_of(self._root, RUN.id, self.id)

    def _look(self, entries: list[Any]) -> list[Any]:
        self._left -= 1
        if self._left == 0:
            ended = record_of(RUN.id, self.request, "done").model_copy(update={"finished": 2.0})
            # The result comes before the request leaves Redis.
            write_result(self._root, ended)
        return entries if self._left > 0 else []

    async def standing(self, _: str) -> list[Any]:
        return self._look([SimpleNamespace(id=self.id, answered=1, parts=1)])

    async def requests(self, _: str) -> list[EvaluationRequest]:
        return self._look([self.request])


async def test_the_list_has_an_evaluation_that_ends_meanwhile(tmp_path: Path) -> None:
    for after in (1, 2, 3):
        root = tmp_path / str(after)
        listed = await routes.evaluations(Ending(root, after).deps, RUN)
        assert len(listed.evaluations) == 1


async def test_an_evaluation_that_ends_meanwhile_is_found(tmp_path: Path) -> None:
    for after in (1, 2, 3):
        ending = Ending(tmp_path / str(after), after)
        assert (await routes._evaluation(ending.deps, RUN, ending.id)).id == ending.id


async def test_all_answers_of_an_evaluation_that_ends_meanwhile_are_shown(tmp_path: Path) -> None:
    for after, rows in ((1, 2), (2, 1)):
        ending = Ending(tmp_path / str(after), after)
        open = record_of(RUN.id, ending.request, "open")
        shown = await routes.answers(ending.deps, RUN, open, routes.AnswerFilter())
        assert shown.total == rows


async def test_a_damaged_file_of_answers_is_named(tmp_path: Path) -> None:
    ending = Ending(tmp_path, 9)
    part_path(ending.folder, 1).write_bytes(b"PAR1 and then nothing")
    open = record_of(RUN.id, ending.request, "open")
    with pytest.raises(Problem, match=r"part-00001.parquet is damaged") as refused:
        await routes.answers(ending.deps, RUN, open, routes.AnswerFilter())
    assert refused.value.status == 409
