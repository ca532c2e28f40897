"""Picks the best and the worst answer of a scored group as text. Pure, except for the tokenizer."""

from typing import Any

from rollout.work.context import RunContext
from rollout.work.group import Sampled
from rollout.work.task_rows import TaskRow
from services.contracts.groups.sampled_answer import SampledAnswer, cut, extremes
from services.contracts.weights import parse_version_tag


def judged_answers(
    context: RunContext, task: int, row: TaskRow, sampled: Sampled
) -> list[SampledAnswer]:
    """Return the best and the worst answer of a group, or the first one if no verifier gave a
    reward."""

    def text(ids: Any) -> str:
        # With special tokens and blanks as they were sampled.
        return context.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    prompt = cut(text(sampled.prompt_tokens))
    judged = []
    for i in extremes(sampled.rewards) or [0]:
        completion, score = sampled.completions[i], sampled.scores[i]
        versions = {parse_version_tag(span.version)[1] for span in completion.spans}
        judged.append(
            SampledAnswer(
                step=0,
                task=task,
                row=row.index,
                dataset=row.dataset.name,
                own=sampled.own,
                prompt=prompt,
                completion=cut(text(completion.token_ids)),
                reference=sampled.reference,
                tokens=len(completion.token_ids),
                reward=score.reward,
                status=score.status,
                components=score.components,
                reasons=score.reasons,
                advantage=None,
                finish_reason=completion.finish_reason,
                versions=sorted(versions),
            )
        )
    return judged
