"""Models of OpenAI's API: what runs start from, and what they have made. Pure."""

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, Field

from services.contracts.openai_models import fine_tuned_name
from services.contracts.records import RunSummary

RUN_PREFIX = "run:"
SCRATCH = "scratch"
"""The base of a model that began with random weights."""


class OpenAIModel(BaseModel):
    """A model."""

    id: str = Field(description="Its name: `model` of a job or of a call.")
    object: Literal["model"] = Field("model", description="`model`.")
    created: int = Field(description="Unix time.")
    owned_by: str = Field(
        description="The project of its run; `headrace` for a model without project."
    )


class OpenAIModelList(BaseModel):
    """The models of this installation."""

    object: Literal["list"] = Field("list", description="`list`.")
    data: list[OpenAIModel] = Field(description="Fine-tuned models, then the bases of runs.")


class DeletedOpenAIModel(BaseModel):
    """A model that is gone."""

    id: str = Field(description="Its name.")
    object: Literal["model"] = Field("model", description="`model`.")
    deleted: bool = Field(True, description="`true`.")


def name_of(run: RunSummary, step: int | None = None) -> str:
    """Return the fine-tuned model's name of a run that no fine-tuning job has made."""
    return fine_tuned_name(run.model or SCRATCH, run.project or "", run.name, run.id, step)


def models_of(runs: Iterable[RunSummary], names: dict[str, str]) -> list[OpenAIModel]:
    """Return the models of `runs`, newest first: those that finished runs have made, and what runs
    start from. `names`: those of models that fine-tuning jobs have made, by run."""
    made, bases = [], dict[str, OpenAIModel]()
    for run in runs:
        owner = run.project or "headrace"
        if run.state.final and run.checkpoint is not None:
            name = names.get(run.id) or name_of(run)
            made.append(model(name, run.finished or run.created, owner))
            base = f"{RUN_PREFIX}{run.id}"
            bases[base] = model(base, run.created, owner)
        if run.model and not run.model.startswith(RUN_PREFIX):
            # The oldest run that starts from it comes last.
            bases[run.model] = model(run.model, run.created, "headrace")
    return [*made, *bases.values()]


def model(id: str, created: float, owner: str) -> OpenAIModel:
    return OpenAIModel(id=id, created=int(created), owned_by=owner)
