"""Rollouts of a run as its learner keeps them, from a few words for each answer."""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from learner.metrics.rollout_rows import records_of
from services.rollouts.index import append, index_path
from services.rollouts.parts import COLUMNS, lists, part_name, write
from services.rollouts.token_texts import NAME, write_token_texts

TEXTS = [b"<bos>", b"1+2=", b" 3", b"\xe2\x82", b"\xac", b"<eos>"]
"""The bytes of each token; two tokens share the euro sign."""


def answer(step: int, group: int = 0, sample: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the row of a trained answer."""
    ids = fields.pop("token_ids", [2, 5])
    return {
        "step": step,
        "group": group,
        "sample": sample,
        "row": 7,
        "dataset": "",
        "own": None,
        "reference": "3",
        "prompt": "<bos>1+2=",
        "completion": b"".join(TEXTS[id] for id in ids).decode("utf-8", "replace"),
        "reward": 1.0,
        "components": {"math": 1.0},
        "reasons": {"math": "'3' against '3'"},
        "advantage": 0.25,
        "status": "correct",
        "finish_reason": "stop",
        "trained": True,
        "length": len(ids),
        "turns": None,
        "worker": "w",
        "generated_at": 5.0,
        "prompt_token_ids": [0, 1],
        "token_ids": ids,
        "sampler_logprobs": [-0.5] * len(ids),
        "learner_logprobs": [-0.25] * len(ids),
        "entropy": [0.125] * len(ids),
        "advantages": None,
        "versions": [{"start": 0, "end": len(ids), "version": step - 1}],
        "branches": [],
    } | fields


def keep(run: Path, rows: Sequence[dict[str, Any]], rank: int = 0) -> Path:
    """Keep answers, by ascending step, as `rank` of a learner of the run in the folder `run` does.
    Returns the folder of the rollouts."""
    folder = run / "rollouts"
    folder.mkdir(parents=True, exist_ok=True)
    for step, of_step in groupby(rows, key=lambda row: int(row["step"])):
        table = table_of([*of_step])
        write(folder / part_name(step, rank), table, table.column("length").to_pylist())
        append(index_path(folder, rank), records_of(table, rank))
    write_token_texts(folder / NAME, TEXTS)
    return folder


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    columns = []
    for field in COLUMNS:
        values = [row[field.name] for row in rows]
        if field.name in ("components", "reasons"):
            values = [json.dumps(value) for value in values]
        if pa.types.is_list(field.type) and not pa.types.is_struct(field.type.value_type):
            arrays = [None if value is None else np.array(value, float) for value in values]
            columns.append(lists(arrays, field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=COLUMNS)
