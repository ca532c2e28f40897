"""Objectives that are refused, each with its ways out (ways_out)."""

from typing import Any

from tests.unit.contracts.refused_parts import (
    OUT,
    TAUGHT,
    Way,
    algorithm,
)

OBJECTIVES: list[tuple[dict[str, Any], list[Way]]] = [
    (algorithm(minibatches=64), [{"algorithm.minibatches": 32}]),
    (
        algorithm(samples_per_prompt=1),
        [
            {"algorithm.samples_per_prompt": 2},
            {"algorithm.advantage": {"type": "running_mean"}},
        ],
    ),
    (
        algorithm(samples_per_prompt=1, advantage={"type": "global_whiten", "whiten": "group"}),
        [{"algorithm.samples_per_prompt": 2}, {"algorithm.advantage.whiten": "batch"}],
    ),
    (
        algorithm(samples_per_prompt=1, advantage={"type": "gae", "whiten": "group"}, critic={}),
        [{"algorithm.samples_per_prompt": 2}, {"algorithm.advantage.whiten": "batch"}],
    ),
    (
        algorithm(samples_per_prompt=1, advantage={"type": "running_mean"}, dynamic_sampling={}),
        [{"algorithm.samples_per_prompt": 2}, {"algorithm.dynamic_sampling": OUT}],
    ),
    (
        algorithm(kl={"type": "k3", "adaptive": {"horizon": 51}}),
        [{"algorithm.kl.adaptive.horizon": 52}],
    ),
    (
        algorithm(aggregation={"type": "prompt_mean", "chunk": 9}),
        [{"algorithm.aggregation.chunk": 8}, {"algorithm.aggregation.chunk": OUT}],
    ),
    (
        algorithm(best_of={"generation_size": 8}),
        [{"algorithm.best_of.generation_size": 9}, {"algorithm.best_of": OUT}],
    ),
    (
        algorithm(correction={"type": "truncate"}),
        [{"algorithm.proximal.type": "recompute"}, {"algorithm.correction": {"type": "none"}}],
    ),
    (
        algorithm(correction={"type": "mask"}, proximal={"type": "lagged"}),
        [{"algorithm.proximal": {"type": "recompute"}}, {"algorithm.correction.type": "none"}],
    ),
    *(
        (
            algorithm(loss={"type": "dppo"}, correction={"type": kind}, **more),
            [{"algorithm.correction.type": "none"}],
        )
        for kind in ("truncate", "mask", "off_policy_sequence_mask")
        for more in ({}, {"proximal": {"type": "recompute"}}, {"proximal": {"type": "lagged"}})
    ),
    (
        algorithm(kl={"type": "k1_in_reward"}),
        [
            {"algorithm.advantage": {"type": "global_whiten"}},
            {"algorithm.advantage": {"type": "gae"}, "algorithm.critic": {}},
            {"algorithm.kl.type": "k2"},
            {"algorithm.kl.type": "k3"},
        ],
    ),
    (
        algorithm(kl={"type": "k1_in_reward"}, advantage={"type": "sequence_value"}, critic={}),
        [
            {"algorithm.advantage": {"type": "global_whiten"}, "algorithm.critic": OUT},
            {"algorithm.advantage": {"type": "gae"}},
            {"algorithm.kl.type": "k2"},
        ],
    ),
    (
        algorithm(advantage={"type": "reverse_kl"}),
        [
            {"algorithm.teacher": {"path": "t"}},
            {"algorithm.teacher": {"endpoint": "big"}},
        ],
    ),
    (
        algorithm(teacher={"path": "t"}),
        [{"algorithm.advantage": {"type": "reverse_kl"}}, {"algorithm.teacher": OUT}],
    ),
    (algorithm(**TAUGHT, dynamic_sampling={}), [{"algorithm.dynamic_sampling": OUT}]),
    (algorithm(**TAUGHT, best_of={"generation_size": 9}), [{"algorithm.best_of": OUT}]),
    (
        algorithm(advantage={"type": "gae"}),
        [{"algorithm.critic": {}}, {"algorithm.advantage": {"type": "group_zscore"}}],
    ),
    (
        algorithm(critic={}),
        [{"algorithm.critic": OUT}, {"algorithm.advantage": {"type": "gae"}}],
    ),
    (
        algorithm(advantage={"type": "gae", "whiten": False, "keep_mean": True}, critic={}),
        [{"algorithm.advantage.whiten": True}],
    ),
    (
        algorithm(correction={"type": "mask", "low": 5.0, "high": 5.0}),
        [{"algorithm.correction.low": 4.0}, {"algorithm.correction.high": 6.0}],
    ),
    (
        algorithm(dynamic_sampling={"low": 0.5, "high": 0.5}),
        [{"algorithm.dynamic_sampling.low": 0.4}, {"algorithm.dynamic_sampling.high": 0.6}],
    ),
    (
        algorithm(shaping={"penalise_no_eos": True}),
        [{"algorithm.shaping.reward_penalty": -1}],
    ),
    (
        algorithm(shaping={"reward_penalty": -1}),
        [
            {"algorithm.shaping.penalise_no_eos": True},
            {"algorithm.shaping.min_response_length": 2},
            {"algorithm.shaping.reward_penalty": OUT},
        ],
    ),
    (algorithm(shaping={"scale": 0}), [{"algorithm.shaping.scale": 1}]),
    (
        algorithm(
            shaping={"penalise_no_eos": True, "mask_no_eos_with_zero": True, "reward_penalty": -1}
        ),
        [
            {"algorithm.shaping.mask_no_eos_with_zero": False},
            {"algorithm.shaping.penalise_no_eos": OUT, "algorithm.shaping.reward_penalty": OUT},
        ],
    ),
    (
        algorithm(**TAUGHT | {"teacher": {}}),
        [{"algorithm.teacher.path": "t"}, {"algorithm.teacher.endpoint": "big"}],
    ),
    (
        algorithm(**TAUGHT | {"teacher": {"path": "t", "model": "m"}}),
        [
            {"algorithm.teacher.model": OUT},
            {"algorithm.teacher.endpoint": "big", "algorithm.teacher.path": OUT},
        ],
    ),
]
