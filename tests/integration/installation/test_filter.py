"""Prompts that nothing solves are filtered, and others are sampled in their place."""

from tests.integration.installation.conftest import Installation

ROWS, STEPS, PROMPTS = 8, 6, 4


def test_filtered_rows_are_not_sampled_in_later_passes(installation: Installation) -> None:
    rows = [{"prompt": f"{n}+1", "answer": str(n + 1)} for n in range(ROWS)]
    installation.add("unsolved", rows)

    record, events = installation.ended(
        installation.submit(
            data={"dataset": "unsolved", "filter": {"low": 0.5, "passes": 1, "max_share": 0.5}},
            rewards=[{"verifier": "regex", "params": {"pattern": "never"}}],
            algorithm={"prompts_per_step": PROMPTS, "samples_per_prompt": 2},
            training={"max_steps": STEPS, "checkpoint_every": 2},
        )
    )

    assert (record["state"], record["step"]) == ("succeeded", STEPS), record["reason"]
    audit = installation.api.get(f"/v1/runs/{record['id']}/audit")
    trained, filtered = audit["trained"], audit["dropped"]["filtered_prompt"]
    assert (audit["lost"], audit["duplicated"], audit["in_flight"]) == (0, 0, 0)
    assert trained == STEPS * PROMPTS
    assert audit["tasks"] == trained + filtered
    # Four of the first pass's eight are filtered. Each later pass trains the other four, but for
    # tasks of the second that were under way before.
    assert ROWS <= filtered <= trained - ROWS
    said = [str(e.data["message"]) for e in events if e.kind == "warning"]
    (told,) = [text for text in said if "is filtered" in text]
    assert "up to 50% of the dataset: its mean reward 0 is below data.filter.low 0.5" in told


def test_rows_that_nothing_solves_are_sampled_less_often_by_a_curriculum(
    installation: Installation,
) -> None:
    rows = [{"prompt": f"{n}+1", "answer": str(n + 1)} for n in range(ROWS)]
    installation.add("hopeless", rows)

    record, _ = installation.ended(
        installation.submit(
            data={"dataset": "hopeless", "curriculum": {"least": 0.2}},
            rewards=[{"verifier": "regex", "params": {"pattern": "never"}}],
            algorithm={"prompts_per_step": PROMPTS, "samples_per_prompt": 2},
            training={"max_steps": STEPS, "checkpoint_every": 2},
        )
    )

    assert (record["state"], record["step"]) == ("succeeded", STEPS), record["reason"]
    audit = installation.api.get(f"/v1/runs/{record['id']}/audit")
    skipped = audit["dropped"]["curriculum"]
    assert (audit["lost"], audit["duplicated"], audit["in_flight"]) == (0, 0, 0)
    assert (audit["trained"], audit["tasks"]) == (STEPS * PROMPTS, STEPS * PROMPTS + skipped)
    metrics = installation.api.get(f"/v1/runs/{record['id']}/metrics")["metrics"]
    shares = [row["curriculum/skipped"] for row in metrics]
    # The metrics do not count prompts skipped after the last step.
    assert 0 < sum(PROMPTS * share / (1 - share) for share in shares) < skipped + 0.5
