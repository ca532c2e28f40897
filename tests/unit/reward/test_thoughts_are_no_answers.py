"""Verifiers read the answer after the thoughts. A cut-off thought has no answer."""

from typing import Any

import pytest

from reward.scoring import UNFINISHED, _detail
from reward.verifiers.base import failed
from reward.verifiers.tasks.reasoning import PACKAGE
from services.contracts.scores import ScoreItem, ScoreStatus
from tests.unit.reward.scoring import score

CODE = {"inputs": [""], "outputs": ["7\n"]}
COUNTDOWN = {"nums": [1, 2, 3], "target": 6}
IFEVAL = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
GYM = {"question": "1+1", "answer": "2", "metadata": {"source_dataset": "chain_sum"}}
RIGHT: list[tuple[str, str, Any]] = [
    ("math", "so \\boxed{5}", "5"),
    ("choice", "The answer is B.", "B"),
    ("exact", "yes", "yes"),
    ("contains", "It is Paris.", "Paris"),
    ("regex", "call 555", r"\d{3}"),
    ("json_schema", "{}", {"type": "object"}),
    ("countdown", "1+2+3", COUNTDOWN),
    ("ifeval", "yes", IFEVAL),
    ("code", "```python\nprint(7)\n```", CODE),
    ("reasoning_gym", "<answer>2</answer>", GYM),
]
NAMES = [name for name, _, _ in RIGHT]


@pytest.mark.parametrize("form", ["written", "opened by the prompt"])
@pytest.mark.parametrize(("name", "answer", "reference"), RIGHT, ids=NAMES)
def test_a_cut_off_thought_has_no_answer(name: str, answer: str, reference: Any, form: str) -> None:
    if name == "reasoning_gym":
        pytest.importorskip(PACKAGE)
    written, prefill = ("<think>", "") if form == "written" else ("", "<think>\n")
    verdict = score(name, f"{written}{answer}\nbut wait", reference, prefill=prefill)

    assert (verdict.status, verdict.reward) == (ScoreStatus.NO_ANSWER, 0.0)


@pytest.mark.parametrize(("name", "answer", "reference"), RIGHT[:8], ids=NAMES[:8])
def test_the_answer_after_a_thought_counts(name: str, answer: str, reference: Any) -> None:
    assert score(name, f"hm, 4?</think>\n{answer}", reference, prefill="<think>\n").reward == 1.0


@pytest.mark.parametrize(
    "tag",
    [
        "analysis",
        "reflection",
        "scratchpad",
        "SCRATCHPAD",
        "scratch_pad",
        "longcat_think",
        "think_fast",
        "rationale",
        "antThinking",
    ],
)
def test_the_tags_of_other_models_and_prompts_hold_thoughts(tag: str) -> None:
    assert score("math", f"<{tag}>The answer is 4.</{tag}>\n5", "5").reward == 1.0
    assert score("math", f"<{tag}>The answer is 5.", "5").status == ScoreStatus.NO_ANSWER


@pytest.mark.parametrize("strict", ["whole", "any"])
def test_json_stands_after_the_thoughts(strict: str) -> None:
    assert score("json_schema", "<think>[]</think> {}", {"type": "object"}, extract=strict).reward


def test_the_reason_is_that_the_thought_has_no_end() -> None:
    verdict = failed(ScoreStatus.NO_ANSWER, "the completion names no choice")
    item = ScoreItem(id="0", verifier="choice", completion="A or B", prefill="<think>")

    assert _detail(item, verdict) == UNFINISHED
    assert _detail(item.model_copy(update={"prefill": ""}), verdict) == verdict.detail
