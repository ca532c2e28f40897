"""Rewards and lengths of a batch's answers: sums that ranks add up, and metrics from them. Pure."""

from collections.abc import Mapping, Sequence

from services.contracts.groups.trajectory import TRUNCATED, TrajectoryGroup
from services.contracts.pass_at import ks, pass_at
from services.contracts.scores import VERDICTS, ScoreStatus

BASIC = (
    "samples",
    "scored",
    "unanswered",
    "reward",
    "reward_squared",
    "groups",
    "flat_groups",
    "completion_tokens",
    "prompt_tokens",
    "truncated",
    "sampled_reward",
)
SUM, COUNT = "sum ", "count "
"""Prefixes of a component's name."""
DATASET = "dataset "
"""Prefix of the sums of a dataset, which are named `dataset KEY NAME`."""
FILTERED = "filtered "
"""Prefix of a dataset's name in the store's totals."""


def outcome_sums(groups: Sequence[TrajectoryGroup], samples: int) -> dict[str, float]:
    """Return sums over one rank's groups. Sums of components are named as in these groups.

    `samples`: the run's samples per prompt. A group is left out of pass@k if a reward is missing or
    if its verifiers only rate answers.
    """
    sums = dict.fromkeys(BASIC, 0.0)
    sums |= {f"pass {k}": 0.0 for k in ks(samples)} | {"whole_groups": 0.0}
    for group in groups:
        header = group.header
        rewards = [r for r in header.rewards if r is not None]
        sums["samples"] += group.samples
        sums["scored"] += len(rewards)
        sums["unanswered"] += header.statuses.count(ScoreStatus.NO_ANSWER)
        sums["reward"] += sum(rewards)
        sums["reward_squared"] += sum(r * r for r in rewards)
        trained = sum(rewards) / max(len(rewards), 1)
        sampled = header.sampled_reward
        sums["sampled_reward"] += trained if sampled is None else sampled
        sums["groups"] += 1
        sums["flat_groups"] += len(set(rewards)) <= 1
        sums["completion_tokens"] += int(group.lengths.sum())
        sums["prompt_tokens"] += len(group.prompt_tokens) * group.samples
        sums["truncated"] += sum(reason in TRUNCATED for reason in header.finish_reasons)
        rated = VERDICTS.isdisjoint(header.statuses) and ScoreStatus.SCORED in header.statuses
        if len(rewards) == group.samples == samples and not rated:
            correct = sum(status == ScoreStatus.CORRECT for status in header.statuses)
            sums["whole_groups"] += 1
            for k in ks(samples):
                sums[f"pass {k}"] += pass_at(k, samples, correct)
        if group.turns is not None:
            for key, value in _session_sums(group, group.turns.sum()).items():
                sums[key] = sums.get(key, 0.0) + value
        if header.dataset:
            for key, value in _dataset_sums(group, rewards).items():
                key = f"{DATASET}{key} {header.dataset}"
                sums[key] = sums.get(key, 0.0) + value
        for name, rewards_of_it in header.components.items():
            values = [v for v in rewards_of_it if v is not None]
            sums[SUM + name] = sums.get(SUM + name, 0.0) + sum(values)
            sums[COUNT + name] = sums.get(COUNT + name, 0.0) + len(values)
    return sums


def _session_sums(group: TrajectoryGroup, turns: float) -> dict[str, float]:
    """Return the sums of one group of agents' sessions with `turns` turns."""
    forks = 0 if group.branches is None else len(group.branches)
    added = len(group.loss_mask) - group.loss_mask.sum()
    sessions = float(group.samples)
    return {
        "sessions": sessions,
        "turns": float(turns),
        "forks": float(forks),
        "added": float(added),
    }


def _dataset_sums(group: TrajectoryGroup, rewards: Sequence[float]) -> dict[str, float]:
    """Return the sums of one group for the metrics of its dataset. `rewards`: the group's rewards
    that are not null."""
    statuses = group.header.statuses
    judged = [status for status in statuses if status in VERDICTS]
    return {
        "groups": 1.0,
        "samples": float(group.samples),
        "scored": float(len(rewards)),
        "reward": sum(rewards),
        "judged": float(len(judged)),
        "correct": float(sum(status == ScoreStatus.CORRECT for status in judged)),
        "tokens": float(group.lengths.sum()),
        "truncated": float(sum(reason in TRUNCATED for reason in group.header.finish_reasons)),
    }


def dataset_metrics(
    sums: dict[str, float], names: Sequence[str], grown: Mapping[str, float]
) -> dict[str, float]:
    """Return metrics of each dataset of a mixture, from sums over all ranks. `grown`: with dynamic
    sampling, groups that were filtered since the last step, by `FILTERED` and the dataset."""
    metrics: dict[str, float] = {}
    for name in names:

        def of(key: str, name: str = name) -> float:
            return sums.get(f"{DATASET}{key} {name}", 0.0)

        metrics[f"dataset/share/{name}"] = of("groups") / max(sums["groups"], 1.0)
        if of("scored"):
            metrics[f"dataset/reward/{name}"] = of("reward") / of("scored")
        if of("judged"):
            metrics[f"dataset/pass_rate/{name}"] = of("correct") / of("judged")
        if of("samples"):
            metrics[f"dataset/tokens/{name}"] = of("tokens") / of("samples")
            metrics[f"dataset/truncated/{name}"] = of("truncated") / of("samples")
        if (filtered := grown.get(FILTERED + name)) is not None:
            groups = of("groups") + filtered
            metrics[f"dataset/filtered/{name}"] = filtered / max(groups, 1.0)
    return metrics


def outcome_metrics(
    sums: dict[str, float], samples: int, rewarded: bool = True
) -> dict[str, float]:
    """Return reward and length metrics of the batch, from sums over all ranks. If there are several
    components, each has a mean over the samples with a score from it. `rewarded`: whether the run
    has rewards at all."""
    scored, total = max(sums["scored"], 1.0), max(sums["samples"], 1.0)
    mean = sums["reward"] / scored
    variance = max(sums["reward_squared"] - scored * mean * mean, 0.0) / max(scored - 1, 1.0)
    metrics = {
        "reward/mean": mean,
        "reward/std": variance**0.5,
        "reward/all_zero": float(sums["scored"] > 0 and sums["reward_squared"] == 0),
        "reward/groups_without_variance": sums["flat_groups"] / max(sums["groups"], 1.0),
        "reward/missing": 1 - sums["scored"] / total,
        "reward/no_answer": sums["unanswered"] / total,
        "prompt/tokens_mean": sums["prompt_tokens"] / total,
        "response/tokens_mean": sums["completion_tokens"] / total,
        "response/truncated": sums["truncated"] / total,
    }
    if sums.get("sessions"):
        metrics |= {
            "session/turns": sums["turns"] / sums["sessions"],
            "session/fork_rate": sums["forks"] / max(sums["turns"], 1.0),
            "session/tool_tokens": sums["added"] / sums["sessions"],
        }
    if not rewarded:
        return {name: value for name, value in metrics.items() if not name.startswith("reward/")}
    if sums["whole_groups"]:
        metrics |= {
            f"reward/pass_at_{k}": sums[f"pass {k}"] / sums["whole_groups"] for k in ks(samples)
        }
    components = [key.removeprefix(SUM) for key in sums if key.startswith(SUM)]
    if len(components) > 1:
        metrics |= {
            f"reward/component/{name}": sums[SUM + name] / sums[COUNT + name]
            for name in components
            if sums[COUNT + name]
        }
    return metrics


def selection_metrics(sums: dict[str, float], filtered: float, reward: float) -> dict[str, float]:
    """Return metrics of the sampled groups, if only some of them are trained. `filtered`: groups
    that were filtered since the last step; `reward`: sum of their mean rewards."""
    groups = sums["groups"] + filtered
    return {
        "reward/groups_filtered": filtered / max(groups, 1.0),
        "reward/mean_sampled": (sums["sampled_reward"] + reward) / max(groups, 1.0),
    }
