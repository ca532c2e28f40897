"""The config of an evaluation's run: the defaults of a request, and their sources."""

from typing import Any

import pytest

from services.contracts.config import parse_config
from services.contracts.records import DatasetRecord, RunRecord, RunState
from services.datasets import KNOWN_FILES
from services.gateway.submission.evaluation_submission import EvaluationSubmission, evaluation_run
from services.http import Problem

PLAIN = DatasetRecord(id="d1", name="plain", rows=2, created=0, segments=[])
KNOWN = PLAIN.model_copy(update={"name": "sums", "defaults": KNOWN_FILES["gsm8k"].defaults})


def made_by(raw: dict[str, Any]) -> RunRecord:
    config = parse_config(raw).model_dump(mode="json")
    kind = config["type"]
    return RunRecord(
        id="r1",
        name="mine",
        pool="p",
        kind=kind,
        state=RunState.SUCCEEDED,
        created=0,
        config=config,
    )


RL = made_by(
    {
        "model": {"path": "m", "dtype": "float32", "lora": {}},
        "data": {"dataset": "x", "template": "Q: {prompt}"},
        "rewards": [{"verifier": "exact", "dense": "values"}],
        "sampling": {"temperature": 0.7, "max_tokens": 20, "top_k": 5},
        "rollout": {"vllm": {"max_model_len": 64, "max_num_seqs": 4}, "max_staleness": 3},
        "algorithm": {"advantage": {"type": "global_whiten"}, "samples_per_prompt": 4},
    }
)
SFT = made_by({"type": "sft", "model": {"path": "m"}, "data": {"dataset": "x", "system": "Be."}})


def config_of(dataset: DatasetRecord, run: RunRecord | None, **request: Any) -> dict[str, Any]:
    asked = EvaluationSubmission(model="m", dataset=dataset.name, **request)
    submission = evaluation_run(asked, "run:r1@5" if run else "/m", dataset, run, None)
    # As it is stored: with every default, and valid.
    return parse_config(submission.config).model_dump(mode="json")


def test_a_runs_prompts_sampling_and_rewards_are_used_on_a_dataset_without_its_own() -> None:
    config = config_of(PLAIN, RL, samples=4)

    assert config["data"]["template"] == "Q: {prompt}"
    assert config["rewards"][0] | {"params": {}} == config["rewards"][0]
    assert (config["rewards"][0]["verifier"], config["rewards"][0]["dense"]) == ("exact", None)
    assert (config["sampling"]["max_tokens"], config["sampling"]["top_k"]) == (20, 5)
    assert config["rollout"]["vllm"]["max_model_len"] == 64
    assert (
        config["model"] | {"path": "run:r1@5", "dtype": "float32", "lora": None} == config["model"]
    )
    assert config["evaluation"]["temperature"] == 1.0


def test_a_dataset_with_its_own_is_asked_the_same_of_every_model() -> None:
    of_rl, of_sft, of_folder = (config_of(KNOWN, run) for run in (RL, SFT, None))

    for config in (of_rl, of_sft, of_folder):
        assert "####" in config["data"]["template"]
        assert [reward["verifier"] for reward in config["rewards"]] == ["math"]
        assert config["evaluation"]["temperature"] == 0.0
    assert of_sft["data"]["system"] == "Be."


def test_what_the_request_says_goes_first() -> None:
    config = config_of(
        KNOWN,
        RL,
        verifier="exact",
        temperature=0.3,
        max_tokens=7,
        category="level",
        config={"data": {"template": "{prompt}!"}},
    )

    assert config["rewards"][0]["verifier"] == "exact"
    assert config["data"]["template"] == "{prompt}!"
    assert config["sampling"]["max_tokens"] == 7
    assert (config["evaluation"]["temperature"], config["evaluation"]["category"]) == (0.3, "level")


def test_without_anything_that_scores_answers_it_is_refused() -> None:
    for run in (SFT, None):
        with pytest.raises(Problem, match="nothing says how answers to dataset plain are scored"):
            config_of(PLAIN, run)
