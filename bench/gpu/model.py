"""A model of Qwen3-0.6B's size with random weights, and a tokenizer for it."""

from pathlib import Path

import torch

from bench.learner.sizes import MODELS

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
}


def is_tiny() -> bool:
    """Whether there is no GPU, on which the model would have its full size."""
    return not torch.cuda.is_available()


def write_model(folder: Path) -> Path:
    """Write the model into `folder`. Its words have different lengths, so that rewards by the
    length of an answer differ."""
    # Imported first: a model's module may meet this one half imported.
    import transformers.modeling_utils  # noqa: F401
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    sizes = MODELS["Qwen3-0.6B"] | (TINY if is_tiny() else {})
    config = AutoConfig.for_model(
        **sizes, max_position_embeddings=4096, bos_token_id=None, eos_token_id=1, pad_token_id=1
    )
    torch.manual_seed(0)
    with torch.device("cpu" if is_tiny() else "cuda"):
        kind = torch.float32 if is_tiny() else torch.bfloat16
        model = AutoModelForCausalLM.from_config(config, dtype=kind)
    model.save_pretrained(folder)
    words = {"ab" * (1 + n % 7) + str(n): n for n in range(config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=next(iter(words))))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    end = list(words)[1]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end).save_pretrained(folder)
    return folder
