"""Configs that are refused, each with the ways out that its refusal names (test_ways_out)."""

from typing import Any

from tests.unit.contracts.configs import RL
from tests.unit.contracts.refused_objectives import OBJECTIVES
from tests.unit.contracts.refused_parts import (
    CRITIC,
    DATA,
    DENSE,
    IN_BACKWARD,
    LIVE,
    LORA,
    NO_VARIABLES,
    ONE_MICROBATCH,
    OUT,
    PARSER,
    SERVED,
    TAUGHT,
    TOOLS,
    VARIABLES,
    Way,
    algorithm,
)
from tests.unit.contracts.refused_supervised import SUPERVISED

SECTIONS: list[tuple[dict[str, Any], list[Way]]] = [
    (RL | {"data": DATA | {"template": "Q"}}, [{"data.template": "Q {prompt}"}]),
    (RL | {"data": DATA | {"template": "{prompt}" * 17}}, [{"data.template": "{prompt}" * 16}]),
    (
        RL | {"data": DATA | {"filter": {}}},
        [{"data.filter.low": 0.1}, {"data.filter.high": 0.9}, {"data.filter": OUT}],
    ),
    (
        RL | {"data": DATA | {"filter": {"low": 0.5, "high": 0.5}}},
        [{"data.filter.low": 0.4}, {"data.filter.high": 0.6}],
    ),
    (
        RL | {"data": DATA | {"weight": 1}},
        [{"data.weight": OUT}, {"data.mix": [{"dataset": "e", "weight": 1}]}],
    ),
    (
        RL | {"data": DATA | {"weight": 1, "mix": [{"dataset": "e"}]}},
        [{"data.mix.0.weight": 1}],
    ),
    (
        RL | {"data": DATA | {"weight": 1, "mix": [{"dataset": "e", "repeats": 2}]}},
        [
            {"data.mix.0.weight": 1, "data.mix.0.repeats": OUT},
            {"data.weight": OUT, "data.repeats": 1},
        ],
    ),
    (
        RL | {"data": DATA | {"order": "file", "mix": [{"dataset": "e"}]}},
        [{"data.order": OUT}, {"data.mix": OUT}],
    ),
    (RL | {"data": {}}, [{"data.dataset": "d"}]),
    (
        RL | {"data": DATA | {"reward_deadline": 9}},
        [{"data.reward_deadline": OUT}],
    ),
    (LIVE | {"data": {"source": "sessions", "template": "{prompt}="}}, [{"data.template": OUT}]),
    (RL | {"data": DATA | {"chat_template": "my.jinja"}}, [{"data.chat_template": "none"}]),
    (
        RL | {"data": DATA | {"chat_template": "none", "chat_template_kwargs": {"a": 1}}},
        [{"data.chat_template": OUT}, {"data.chat_template_kwargs": OUT}],
    ),
    *(
        (RL | {"data": DATA | {VARIABLES: wrong}}, [{f"data.{VARIABLES}": OUT}])
        for wrong in NO_VARIABLES
    ),
    (
        RL | {"data": DATA | {"chat_template": "none"}, "rollout": {"episode": "sessions"}},
        [{"data.chat_template": "auto"}],
    ),
    (
        RL | {"rewards": [{"verifier": "v", "only_if": {"component": "u", "at_least": 1}}]},
        [
            {"rewards.0.only_if": OUT},
            {
                "rewards": [
                    {"verifier": "u"},
                    {"verifier": "v", "only_if": {"component": "u", "at_least": 1}},
                ]
            },
        ],
    ),
    (
        RL | {"rewards": [{"verifier": "v", "weight": 0}]},
        [{"rewards": [{"verifier": "v", "weight": 1}]}],
    ),
    (
        RL | {"rewards": DENSE},
        [
            {"algorithm.advantage": {"type": "gae"}, "algorithm.critic": {}},
            {"algorithm.advantage": {"type": "global_whiten"}},
            {"rewards.0.dense": OUT},
        ],
    ),
    (
        algorithm(**CRITIC) | {"rewards": DENSE, "rollout": {"episode": "calculator"}},
        [{"rewards.0.dense": OUT}, {"rollout.episode": "single_turn"}],
    ),
    (
        algorithm(**CRITIC) | {"rewards": DENSE, "rollout": TOOLS},
        [{"rewards.0.dense": OUT}],
    ),
    (
        RL | {"sampling": {"max_tokens": 64}, "rollout": {"vllm": {"max_model_len": 64}}},
        [{"sampling.max_tokens": 32}, {"rollout.vllm.max_model_len": 128}],
    ),
    (
        algorithm(shaping={"overlong_buffer": 64}),
        [{"algorithm.shaping.overlong_buffer": 32}, {"sampling.max_tokens": 128}],
    ),
    (
        algorithm(shaping={"min_response_length": 65, "reward_penalty": -1}),
        [{"algorithm.shaping.min_response_length": 64}, {"sampling.max_tokens": 65}],
    ),
    (
        RL | {"rollout": {"episode": {"type": "calculator", "start": "<=", "end": "="}}},
        [{"rollout.episode.start": "<<"}],
    ),
    (
        RL | {"rollout": TOOLS | {"episode": {"type": "tools"}}},
        [{"rollout.episode.servers": ["a"]}, {"rollout.episode.python": True}],
    ),
    (
        RL | {"rollout": TOOLS | {"episode": {"type": "tools", "servers": ["a", "a"]}}},
        [{"rollout.episode.servers": ["a"]}],
    ),
    (
        RL | {"rollout": {"episode": {"type": "tools", "python": True}}},
        [{"rollout.vllm": PARSER}],
    ),
    (
        RL | {"rollout": TOOLS, "data": DATA | {"chat_template": "none"}},
        [{"data.chat_template": "auto"}],
    ),
    (RL | {"rollout": TOOLS, "sampling": {"ignore_eos": True}}, [{"sampling.ignore_eos": OUT}]),
    (
        RL | {"evaluation": {"dataset": "e", "more": [{"dataset": "e"}]}},
        [{"evaluation.more.0.name": "second"}],
    ),
    (
        RL | {"model": {"path": "m", "lora": {"targets": ["q", "q"]}}},
        [{"model.lora.targets": ["q"]}],
    ),
    (RL | {"model": {"path": "m", "dtype": "float16"}}, [{"model.dtype": "bfloat16"}]),
    (
        RL | {"optimizer": {"in_backward": True}} | ONE_MICROBATCH,
        [{"optimizer.max_grad_norm": None}, {"optimizer.in_backward": False}],
    ),
    (
        algorithm(kl={"type": "k2"}) | {"placement": {"reference": "gpu1"}},
        [{"placement.reference": "same"}, {"placement.reference": "cuda:0"}],
    ),
    (RL | {"rewards": [{"verifier": "v", "clip": [1, 0]}]}, [{"rewards.0.clip": [0, 1]}]),
    (
        RL | {"rewards": [{"verifier": "v", "name": "w"}, {"verifier": "w"}]},
        [{"rewards.1.name": "x"}],
    ),
    (
        RL | {"rewards": [{"verifier": "v", "params": {"x": float("nan")}}]},
        [{"rewards.0.params": {"x": 1.0}}],
    ),
    (RL | {"sampling": {"top_k": -1}}, [{"sampling.top_k": 0}]),
    *(
        (RL | {"sampling": {"json_schema": {}, "top_k": 9} | wrong}, [way])
        for wrong, way in (
            ({"top_k": 0}, {"sampling.top_k": 50}),
            ({"ignore_eos": True}, {"sampling.ignore_eos": OUT}),
            ({"json_schema": {"title": "x" * 70_000}}, {"sampling.json_schema": {"title": "x"}}),
        )
    ),
    (
        RL | {"sampling": {"json_schema": {}, "top_k": 9}, "rollout": {"episode": "calculator"}},
        [{"sampling.json_schema": OUT}, {"rollout.episode": OUT}],
    ),
    (
        RL | {"sampling": {"top_p": 0.9}},
        [{"sampling.top_k": 100}, {"sampling.top_p": 1}],
    ),
    (RL | {"training": {"max_steps": 5, "epochs": 1}}, [{"training.epochs": OUT}]),
    (
        RL | {"training": {"compile": False, "compile_backend": "eager"}},
        [{"training.compile_backend": OUT}, {"training.compile": True}],
    ),
    (RL | {"training": {"seed": 2**63}}, [{"training.seed": 9_000_000_000_000_000_000}]),
    (
        RL | {"rollout": {"vllm": {"quantization": "fp8_per_channel", "dtype": "float32"}}},
        [{"rollout.vllm.dtype": OUT}, {"rollout.vllm.quantization": OUT}],
    ),
    (
        RL | {"rollout": {"vllm": {"sleeps": True, "tensor_parallel_size": 2}}},
        [{"rollout.vllm.tensor_parallel_size": 1}, {"rollout.vllm.sleeps": OUT}],
    ),
    (
        RL | {"rollout": {"vllm": {"extra": {"spec-model": "small"}}}},
        [{"rollout.vllm.ngram_tokens": 4, "rollout.vllm.extra": OUT}],
    ),
    (
        RL | {"rollout": {"vllm": {"extra": {"max_model_len": 128}}}},
        [{"rollout.vllm.max_model_len": 128, "rollout.vllm.extra": OUT}],
    ),
    (RL | {"rollout": {"vllm": {"extra": {"seed": "--x"}}}}, [{"rollout.vllm.extra": OUT}]),
    (
        RL | {"rollout": {"vllm": {"extra": {"default_chat_template_kwargs": {"a": 1}}}}},
        [{"data.chat_template_kwargs": {"a": 1}, "rollout.vllm.extra": OUT}],
    ),
    # --- combinations of sections
    (RL | {"model": LORA, "optimizer": {"type": "muon"}}, [{"optimizer.type": "adamw"}]),
    (
        algorithm(proximal={"type": "lagged"}) | {"model": LORA},
        [
            {"algorithm.proximal.type": "sampler"},
            {"algorithm.proximal.type": "recompute"},
            {"model.lora": OUT},
        ],
    ),
    (
        algorithm(kl={"type": "k3", "reference": {"type": "refresh", "every": 9}})
        | {"model": LORA},
        [{"algorithm.kl.reference": {"type": "frozen"}}, {"model.lora": OUT}],
    ),
    (
        algorithm(kl={"type": "k3", "reference": {"path": "r"}}) | {"model": LORA},
        [{"algorithm.kl.reference.path": OUT}, {"model.lora": OUT}],
    ),
    (
        algorithm(kl={"type": "k3"}) | {"model": LORA, "placement": {"reference": "cuda:1"}},
        [{"placement.reference": OUT}],
    ),
    (
        algorithm(kl={"type": "k3"}) | {"model": LORA, "training": {"offload": ["reference"]}},
        [{"training.offload": OUT}],
    ),
    (LIVE | {"rollout": {}}, [{"rollout.episode": "sessions"}]),
    (LIVE | {"evaluation": {"dataset": "e"}}, [{"evaluation": OUT}]),
    (LIVE | {"rewards": [{"verifier": "v"}]}, [{"rewards": []}]),
    (
        LIVE | {"algorithm": {}},
        [
            {
                "algorithm.samples_per_prompt": 1,
                "algorithm.best_of": OUT,
                "algorithm.advantage.type": "running_mean",
            }
        ],
    ),
    (LIVE | {"training": {"epochs": 1}}, [{"training.epochs": OUT, "training.max_steps": 5}]),
    (LIVE | {"training": {"max_steps": 0}}, [{"training.max_steps": 1}]),
    (
        RL | {"data": DATA | {"mix": [{"dataset": "e"}]}, "rollout": {"episode": "sessions"}},
        [{"data.mix": OUT}, {"rollout.episode": "single_turn"}],
    ),
    (
        RL | {"data": DATA | {"curriculum": {}}, "rollout": {"episode": "sessions"}},
        [{"data.curriculum": OUT}],
    ),
    (
        RL | {"evaluation": {"dataset": "e"}, "rollout": {"episode": "sessions"}},
        [{"evaluation": None}],
    ),
    (
        algorithm(**CRITIC) | {"rewards": DENSE, "rollout": {"episode": "sessions"}},
        [{"rewards.0.dense": OUT}],
    ),
    (
        algorithm(router={"replay": True}) | {"rollout": {"episode": "sessions"}},
        [{"algorithm.router.replay": False}],
    ),
    (
        RL | {"sampling": {"ignore_eos": True}, "rollout": {"episode": "sessions"}},
        [{"sampling.ignore_eos": OUT}],
    ),
    (
        RL | {"rollout": {"episode": "sessions", "straggler_deadline": 9}},
        [{"rollout.straggler_deadline": OUT}],
    ),
    (
        algorithm(**SERVED) | {"sampling": {"temperature": 0.5}},
        [{"sampling.temperature": 1}, {"algorithm.teacher": {"path": "t"}}],
    ),
    (
        algorithm(**SERVED) | {"sampling": {"top_k": 9, "top_p": 0.5}},
        [
            {"sampling.top_k": OUT, "sampling.top_p": OUT},
            {"algorithm.teacher": {"path": "t"}},
        ],
    ),
    (RL | {"rewards": []}, [{"rewards": [{"verifier": "v"}]}, {"rollout.episode": "mine"}]),
    (
        algorithm(**TAUGHT) | {"rewards": [], "evaluation": {"dataset": "e"}},
        [{"rewards": [{"verifier": "v"}]}, {"evaluation": OUT}],
    ),
    (
        algorithm(**TAUGHT) | {"rewards": [], "data": DATA | {"filter": {"low": 0.1}}},
        [{"rewards": [{"verifier": "v"}]}, {"data.filter": OUT}],
    ),
    (
        algorithm(samples_per_prompt=300) | {"rollout": {"vllm": {"max_num_seqs": 256}}},
        [{"algorithm.samples_per_prompt": 256}, {"rollout.vllm.max_num_seqs": 300}],
    ),
    (
        algorithm(router={"replay": True}) | {"rollout": {"vllm": {"ngram_tokens": 4}}},
        [{"rollout.vllm.ngram_tokens": 0}, {"algorithm.router.replay": False}],
    ),
    (
        algorithm(advantage={"type": "gae"}, critic={"warmup_steps": 5})
        | {"training": {"max_steps": 5}},
        [{"algorithm.critic.warmup_steps": 4}],
    ),
    (
        RL | {"training": {"max_steps": 0}},
        [{"evaluation.dataset": "e"}, {"training.max_steps": 1}],
    ),
    (
        algorithm(proximal={"type": "loglinear"}, correction={"type": "truncate"})
        | {"rollout": {"max_staleness": 0}},
        [{"algorithm.proximal.type": "recompute"}, {"algorithm.correction": {"type": "none"}}],
    ),
    (
        RL
        | {
            "evaluation": {"dataset": "e", "max_tokens": 256},
            "rollout": {"vllm": {"max_model_len": 256}},
        },
        [{"evaluation.max_tokens": 128}, {"rollout.vllm.max_model_len": 512}],
    ),
    (
        RL
        | {
            "evaluation": {"dataset": "e", "samples": 300},
            "rollout": {"vllm": {"max_num_seqs": 256}},
        },
        [{"evaluation.samples": 256}, {"rollout.vllm.max_num_seqs": 300}],
    ),
    (
        RL
        | {
            "evaluation": {
                "dataset": "e",
                "rewards": [{"verifier": "v", "only_if": {"component": "u", "at_least": 1}}],
            }
        },
        [{"evaluation.rewards.0.only_if": OUT}],
    ),
    *(
        (RL | elsewhere, [left_out, loaded])
        for name, loaded in (
            ("reference", {"algorithm.kl": {"type": "k2"}}),
            ("lagged", {"algorithm.proximal": {"type": "lagged"}}),
            ("critic", {"algorithm.critic": {}, "algorithm.advantage": {"type": "gae"}}),
            (
                "teacher",
                {
                    "algorithm.teacher": {"path": "t"},
                    "algorithm.advantage": {"type": "reverse_kl"},
                },
            ),
        )
        for elsewhere, left_out in (
            ({"placement": {name: "cuda:1"}}, {f"placement.{name}": OUT}),
            ({"training": {"offload": [name]}}, {"training.offload": []}),
        )
    ),
    (
        algorithm(kl={"type": "k3"})
        | {"training": {"offload": ["reference"]}, "placement": {"reference": "cuda:1"}},
        [{"training.offload": []}, {"placement.reference": OUT}],
    ),
    (
        RL
        | {
            "optimizer": IN_BACKWARD,
            "training": {"offload": ["optimizer"], "tokens_per_microbatch": 1 << 20},
            "rollout": {"vllm": {"max_model_len": 128}},
        },
        [{"optimizer.in_backward": OUT}, {"training.offload": []}],
    ),
    (
        RL | {"optimizer": IN_BACKWARD, "training": {"tokens_per_microbatch": 1 << 20}},
        [{"rollout.vllm.max_model_len": 128}],
    ),
    (
        RL | {"optimizer": IN_BACKWARD, "rollout": {"vllm": {"max_model_len": 128}}},
        [
            {"training.tokens_per_microbatch": 1 << 20},
            {"algorithm.minibatches": 32},
            {"optimizer.in_backward": OUT},
        ],
    ),
    (
        algorithm(early_stop_kl=0.1) | {"optimizer": IN_BACKWARD} | ONE_MICROBATCH,
        [{"optimizer.in_backward": OUT}, {"algorithm.early_stop_kl": OUT}],
    ),
]

REFUSED = [*OBJECTIVES, *SECTIONS, *SUPERVISED]
