"""Parts of the configs that are refused (ways_out)."""

from typing import Any, Final

from tests.unit.contracts.configs import RL

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
