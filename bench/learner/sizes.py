"""The configs of known models, without their weights."""

from typing import Any


def qwen3(hidden: int, inside: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": inside,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": tied,
    }


MODELS = {
    "Qwen3-0.6B": qwen3(1024, 3072, 28, 16, True),
    "Qwen3-1.7B": qwen3(2048, 6144, 28, 16, True),
    "Qwen3-4B": qwen3(2560, 9728, 36, 32, True),
    "Qwen3-8B": qwen3(4096, 12288, 36, 32, False),
    "Qwen3-14B": qwen3(5120, 17408, 40, 40, False),
    "Qwen3-32B": qwen3(5120, 25600, 64, 64, False),
}
