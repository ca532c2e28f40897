"""Say whether the rewards of a run could teach it anything. Pure."""

from statistics import fmean

from services.contracts.why import CUT
from services.report.facts import Facts, Row


def nothing_learned(facts: Facts) -> list[str]:
    """Explain why a run of reinforcement learning learned little or nothing. Empty if the rewards
    were all equal in fewer than half of its steps."""
    steps = [row for row in facts.metrics if "reward/mean" in row]
    equal = [row for row in steps if _is_equal(row)]
    if not equal or 2 * len(equal) < len(steps):
        return []
    rewards = sorted({float(row["reward/mean"]) for row in equal})
    value = f"{rewards[0]:.4g}" if len(rewards) == 1 else "the same number"
    if len(equal) == len(steps):
        which = "its only step" if len(steps) == 1 else f"all {len(steps):,} steps"
        sentences = [f"It learned nothing: in {which} every reward was {value}."]
    else:
        sentences = [
            f"In {len(equal):,} of {len(steps):,} steps every reward was {value}: those steps "
            "taught nothing."
        ]
    return sentences + _reasons(facts.record["config"], equal, rewards)


def _is_equal(row: Row) -> bool:
    """Whether all rewards of a step are equal. Without `reward/std` only zeros count."""
    return bool(row.get("reward/all_zero")) or row.get("reward/std") == 0


def _reasons(config: Row, equal: list[Row], rewards: list[float]) -> list[str]:
    reasons = []
    cut = _mean(equal, "response/truncated")
    if cut >= CUT:
        most = (config.get("sampling") or {}).get("max_tokens")
        reasons.append(
            f"{cut:.0%} of their answers were cut off before they ended: sampling.max_tokens "
            f"({most}) is too small for them."
        )
    missing = _mean(equal, "reward/missing")
    if missing > 0:
        reasons.append(f"{missing:.0%} of their answers had no reward, because a verifier broke.")
    if rewards[-1] > 0:
        reasons.append("The prompts are too easy, or the verifier accepts every answer.")
    else:
        reasons.append(
            "Check the verifier and its reference answers against the answers below, or start from "
            "a model that solves some prompts."
        )
    return reasons


def _mean(rows: list[Row], name: str) -> float:
    values = [float(row[name]) for row in rows if isinstance(row.get(name), int | float)]
    return fmean(values) if values else 0.0
