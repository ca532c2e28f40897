"""Checks of the options of one dataset's prompts against the rest of the run."""

from services.contracts.config.base import refuse_if
from services.contracts.config.episodes import Calculator, Episode, Tools
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.objective.terms import GAE, GlobalWhiten
from services.contracts.config.rewards import RewardComponent, named


def check_rewards(rewards: list[RewardComponent], algorithm: Algorithm, episode: Episode) -> None:
    """Gates name earlier rewards, and dense rewards reach tokens. Raises ValueError."""
    refuse_if(
        bool(rewards) and algorithm.teacher is None and not any(each.weight for each in rewards),
        "all weights of rewards are 0, so every answer would earn 0: raise one",
    )
    earlier: list[str] = []
    advantage = algorithm.advantage
    for name, reward in named(rewards).items():
        component = reward.only_if.component if reward.only_if else None
        there = f"there is {', '.join(earlier)}" if earlier else "it is the first of rewards"
        refuse_if(
            component is not None and component not in earlier,
            f"reward {name!r} has only_if.component {component!r}, which is no earlier reward; "
            f"{there}: name an earlier one, or leave only_if out",
        )
        earlier.append(name)
        refuse_if(
            reward.dense is not None and not isinstance(advantage, GlobalWhiten | GAE),
            f"reward {name!r} is dense, and advantage {advantage.type} takes one reward per "
            "sample: set algorithm.advantage.type to global_whiten, or to gae with an "
            "algorithm.critic, or leave dense out",
        )
        refuse_if(
            reward.dense is not None and isinstance(episode, Calculator),
            f"reward {name!r} is dense, and with rollout.episode calculator verifiers read "
            "markers and results, whose parts have no tokens of their own: leave dense out, or "
            "the calculator",
        )
        refuse_if(
            reward.dense is not None and isinstance(episode, Tools),
            f"reward {name!r} is dense, and with rollout.episode tools verifiers read the last "
            "answer of several: leave dense out",
        )


def check_lengths(tokens: int, algorithm: Algorithm, max_model_len: int | None) -> None:
    """Check that completions of `tokens` tokens fit the context and the limits of shaping. Raises
    ValueError."""
    refuse_if(
        max_model_len is not None and tokens >= max_model_len,
        f"sampling.max_tokens {tokens} leaves no room for a prompt in "
        f"rollout.vllm.max_model_len {max_model_len}: lower the one, or raise the other",
    )
    buffer = algorithm.shaping.overlong_buffer
    refuse_if(
        buffer >= tokens,
        f"algorithm.shaping.overlong_buffer {buffer} is not below sampling.max_tokens "
        f"{tokens}, so every answer would be penalised for its length: lower the one, or raise the "
        "other",
    )
    least = algorithm.shaping.min_response_length
    refuse_if(
        least > tokens,
        f"algorithm.shaping.min_response_length {least} exceeds sampling.max_tokens "
        f"{tokens}, so every answer would be penalised for its length: lower the one, or raise the "
        "other",
    )
