"""Requests of evaluations, and answers to them, in few words."""

import time
from typing import Any

from services.contracts.config.data import PromptOptions
from services.contracts.config.evaluation import EvaluationSampling, ResolvedSet
from services.contracts.config.rewards import RewardComponent
from services.contracts.evaluation import AnsweredRow, AnsweredSample, EvaluationRequest
from services.contracts.weights import WeightManifest, encode_manifest


def request(
    manifest: WeightManifest,
    rows: int = 3,
    samples: int = 1,
    step: int | None = None,
    name: str = "held-out",
    **fields: Any,
) -> EvaluationRequest:
    """Return a request for the version of `manifest` on the first rows of the dataset `name`."""
    step = manifest.version if step is None else step
    held_out: dict[str, Any] = {
        "name": name,
        "dataset": name,
        "dataset_name": name,
        "rows": rows,
        "samples": samples,
        "sampling": EvaluationSampling(),
        "prompt": PromptOptions(),
        "rewards": [RewardComponent(verifier="exact")],
    }
    return EvaluationRequest(
        id=f"{step:06d}-{name}",
        step=step,
        version=manifest.tag,
        manifest=encode_manifest(manifest).decode(),
        set=ResolvedSet(**held_out | fields),
        asked=time.time(),
    )


def answered(row: int, *statuses: str, **fields: Any) -> AnsweredRow:
    """Return a row with a sample of each status: a correct one has reward 1, a broken one null."""
    samples = [
        AnsweredSample(
            text=f"{status} {row}",
            tokens=10 + i,
            truncated=False,
            reward={"correct": 1.0, "error": None}.get(status, 0.0),
            status=status,
            components={"exact": 1.0},
            reasons={"exact": f"compared with {row}"},
        )
        for i, status in enumerate(statuses)
    ]
    given: dict[str, Any] = {"prompt": f"prompt {row}", "reference": row, "samples": samples}
    return AnsweredRow(row=row, **given | fields)
