"""Make a model from scratch: random weights, and a tokenizer of characters or trained on the run's
rows."""

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from learner.model.loading.folders import check_size, scratch_numbers
from learner.model.loading.model_loader import LoadedModel, pass_dtype, ready
from services.contracts.config.model import BPETokenizer, CharacterTokenizer, ScratchModel
from services.estimate.model_shape import vocabulary_of

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
TURN, END = "<|im_start|>", "<|im_end|>"
CHAT = (
    "{{ bos_token }}"
    "{% if tools %}<|im_start|>tools\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{% set given = call['function']['arguments'] %}"
    "<tool_call>{\"name\": {{ call['function']['name'] | tojson }}, "
    '"arguments": {{ given if given is string else given | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML. Tools come before the messages. Calls have the format of vLLM's parser `hermes`."""


def make_model(
    config: ScratchModel,
    seed: int,
    device: torch.device | str = "cpu",
    merges: str = "",
) -> LoadedModel:
    """Make a Llama, or with experts a Qwen3-MoE, with random weights drawn from `seed`, and its
    tokenizer: from `merges` (`train_merges`), or of characters. Raises UnusableModel for a model
    that does not fit in memory."""
    check_size("to be made", scratch_numbers(config), torch.float32, None)
    if isinstance(config.tokenizer, CharacterTokenizer):
        tokenizer = character_tokenizer(config.tokenizer, config.max_length)
    else:
        tokenizer = merging_tokenizer(merges, config.max_length)
    sizes = {
        "vocab_size": vocabulary_of(config.tokenizer),
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.hidden_size // config.heads,
        "max_position_embeddings": config.max_length,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel
        if config.experts:
            routed = Qwen3MoeConfig(
                **sizes,
                moe_intermediate_size=config.intermediate_size,
                num_experts=config.experts,
                num_experts_per_tok=config.experts_per_token,
                norm_topk_prob=True,
            )
            model = Qwen3MoeForCausalLM(routed)
        else:
            model = LlamaForCausalLM(LlamaConfig(**sizes))
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return ready(model, tokenizer, pass_dtype(config.dtype, torch.bfloat16, device), device)


def character_tokenizer(config: CharacterTokenizer, max_length: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character. It puts the beginning-of-sequence token
    before an encoded text."""
    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, UNKNOWN, *config.alphabet])}
    # Byte-pair encoding without merges splits text into characters.
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def train_merges(config: BPETokenizer, texts: Iterable[str]) -> str:
    """Train a byte-level tokenizer that merges the most frequent pairs in `texts`. Return it as
    JSON."""
    tokenizer = Tokenizer(BPE())
    # Each digit is a token: a small model can neither copy nor add numbers that are one token.
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=[PAD, BOS, TURN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return str(tokenizer.to_str())


def merging_tokenizer(merges: str, max_length: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer that `train_merges` has made. One token ends texts and turns."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(merges),
        pad_token=PAD,
        bos_token=BOS,
        eos_token=END,
        extra_special_tokens=[TURN],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT
    return tokenizer
