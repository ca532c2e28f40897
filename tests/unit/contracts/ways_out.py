"""Configs that are refused, each with the ways out that its refusal names (test_ways_out)."""

from typing import Any, Final

from tests.unit.contracts.configs import RL, SFT

OUT: Final = object()
"""Leave the key out."""
Way = dict[str, Any]
"""Return the values that a way out changes, by key path."""

DATA = {"dataset": "d"}
LORA = {"path": "m", "lora": {}}
VARIABLES = "chat_template_kwargs"
NO_VARIABLES: list[dict[str, Any]] = [
    *({"a b": 1}, {"tools": []}, {"a": float("inf")}, {"a": "x" * 20_000}),
]
DENSE = [{"verifier": "v", "dense": "values"}]
CRITIC: dict[str, Any] = {"advantage": {"type": "gae"}, "critic": {}}
TAUGHT: dict[str, Any] = {"advantage": {"type": "reverse_kl"}, "teacher": {"path": "t"}}
SERVED = {**TAUGHT, "teacher": {"endpoint": "big"}}
LIVE: dict[str, Any] = {
    **RL,
    "data": {"source": "sessions"},
    "rewards": [],
    "rollout": {"episode": "sessions"},
    "algorithm": {"samples_per_prompt": 1, "advantage": {"type": "running_mean"}},
    "training": {"max_steps": 3},
}
PARSER = {"extra": {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}}
TOOLS: dict[str, Any] = {"episode": {"type": "tools", "python": True}, "vllm": PARSER}
IN_BACKWARD = {"in_backward": True, "max_grad_norm": None}
ONE_MICROBATCH = {
    "training": {"tokens_per_microbatch": 1 << 20},
    "rollout": {"vllm": {"max_model_len": 128}},
}


def algorithm(**terms: Any) -> dict[str, Any]:
    return RL | {"algorithm": terms}


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

PRETRAINED = SFT | {"model": {"path": "m"}, "optimizer": {"type": "adamw"}}
PREFERENCES = PRETRAINED | {"objective": {"type": "dpo"}}
SUPERVISED: list[tuple[dict[str, Any], list[Way]]] = [
    (
        SFT | {"model": {"source": "scratch", "tokenizer": {"alphabet": "aab"}}},
        [{"model.tokenizer.alphabet": "ab"}],
    ),
    (
        SFT | {"model": {"source": "scratch", "experts": 2}},
        [{"model.experts": 3}, {"model.experts": 0}],
    ),
    (
        SFT | {"model": {"source": "scratch", "hidden_size": 100, "heads": 3}},
        [{"model.heads": 5}],
    ),
    (
        SFT | {"model": {"source": "scratch", "hidden_size": 36, "heads": 4}},
        [{"model.hidden_size": 40}, {"model.heads": 2}],
    ),
    (
        SFT | {"data": DATA | {"weight": 1}},
        [{"data.weight": OUT}, {"data.mix": [{"dataset": "e", "weight": 1}]}],
    ),
    (
        SFT | {"training": {"rows_per_step": 8}, "packing": {"tokens_per_step": 256}},
        [{"training.rows_per_step": OUT}, {"packing": OUT}],
    ),
    (
        SFT | {"data": DATA | {"max_seq_len": 300}},
        [{"data.max_seq_len": 256}, {"model.max_length": 300}],
    ),
    (
        SFT | {"data": DATA | {"max_seq_len": 64}, "packing": {"tokens_per_step": 100}},
        [{"packing.tokens_per_step": 64}, {"packing.tokens_per_step": 128}],
    ),
    (
        PRETRAINED | {"training": {"offload": ["reference"]}},
        [{"training.offload": []}, {"objective": {"type": "dpo"}}],
    ),
    (SFT | {"objective": {"type": "dpo"}}, [{"model": {"path": "run:RUN"}}]),
    (
        PREFERENCES | {"validation": {"best": "bits_per_byte"}},
        [{"validation.best": "loss"}, {"validation.best": OUT}],
    ),
    (
        SFT | {"packing": {"tokens_per_step": 256, "crop": "first"}},
        [{"packing.when_none_fits": "crop"}, {"packing.crop": OUT}],
    ),
    (
        PREFERENCES | {"packing": {"tokens_per_step": 256}},
        [{"packing": OUT, "training.rows_per_step": 8}],
    ),
    (PREFERENCES | {"data": DATA | {"train_on": "all"}}, [{"data.train_on": OUT}]),
    (
        PREFERENCES | {"model": LORA, "training": {"offload": ["reference"]}},
        [{"training.offload": []}],
    ),
    (
        PRETRAINED | {"optimizer": {"type": "adamw", **IN_BACKWARD}},
        [{"optimizer.in_backward": OUT}],
    ),
    (PRETRAINED | {"model": LORA, "optimizer": {"type": "muon"}}, [{"optimizer.type": "adamw"}]),
    (SFT | {"training": {"max_steps": 0}}, [{"training.max_steps": 1}]),
    (SFT | {"training": {"offload": ["critic"]}}, [{"training.offload": []}]),
    (
        SFT | {"validation": {"share": 0, "patience": 3}},
        [
            {"validation.share": 0.1},
            {"validation.datasets": ["e"]},
            {"validation.patience": OUT},
        ],
    ),
]
REFUSED = [*OBJECTIVES, *SECTIONS, *SUPERVISED]
