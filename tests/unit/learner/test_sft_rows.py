"""What supervised runs teach is what sampling asks: prompts are rendered as rollouts do."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from learner.batch.cost import TOKENS
from learner.batch.sft_rows import UnusableRow, divided, example, lacking
from learner.distributed import Ranks
from learner.model.logprobs import TokenLogprobs
from learner.sft import examples, validate
from services.contracts.config import SFTConfig, parse_config
from services.contracts.config.data import Data, SFTData
from services.contracts.dataset import Row
from services.contracts.records import DatasetRecord
from services.contracts.rendering import compose, render
from services.datasets import DatasetReader, append_rows
from services.volume import Volume
from tests.unit.learner.policies import tiny_model

# In `TINY`'s alphabet: each message in brackets, then a sign that it is the policy's turn.
TEMPLATE = (
    "{% for m in messages %}({{ m['content'] }}){% endfor %}"
    "{% if add_generation_prompt %}={% endif %}"
)
TEXT = Row(prompt="10+2", answer="12")
MESSAGES = Row(
    prompt=[{"role": "system", "content": "7"}, {"role": "user", "content": "10+2"}], answer="12"
)


def byte_tokenizer() -> Tokenizer:
    """A token for each byte, after a beginning and an end of sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<bos>", "<eos>", *alphabet])}
    made = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return made


def tokenizer(chat_template: str | None = None) -> Any:
    made = tiny_model().tokenizer
    made.chat_template = chat_template
    return made


@pytest.mark.parametrize(
    ("row", "options", "chat_template", "read"),
    [
        (TEXT, {}, None, "<bos>10+2"),
        (TEXT, {"template": "{prompt}="}, None, "<bos>10+2="),
        (TEXT, {}, TEMPLATE, "(10+2)="),
        (TEXT, {"system": "7", "template": "{prompt} -"}, TEMPLATE, "(7)(10+2 -)="),
        (TEXT, {"chat_template": "none", "template": "{prompt}="}, TEMPLATE, "<bos>10+2="),
        (MESSAGES, {"system": "8", "template": "{prompt}="}, TEMPLATE, "(7)(10+2)="),
    ],
    ids=["text", "template", "chat template", "system", "chat_template none", "messages"],
)
def test_an_examples_prompt_is_rendered_as_rollout_workers_do(
    row: Row, options: dict[str, Any], chat_template: str | None, read: str
) -> None:
    tokens = tokenizer(chat_template)
    rollout = Data(dataset="d", **options)
    asked = render(compose(row, rollout), rollout, tokens)

    found = example(row, 0, SFTData(dataset="d", **options), tokens, 64)

    assert tokens.decode(asked) == read
    assert found.tokens.tolist() == [*asked, 5, 6, 2]
    assert found.loss_mask.tolist() == [False] * len(asked) + [True] * 3


@pytest.mark.parametrize(
    ("row", "options", "chat_template", "spelled", "size"),
    [
        # The end of sequence spells nothing.
        (TEXT, {}, None, "12", 2),
        (TEXT, {"train_on": "all"}, None, "10+212", 6),
        # Of the chat (7)(10+2)=, the template adds the brackets and the sign.
        (MESSAGES, {"train_on": "all"}, TEMPLATE, "710+212", 7),
        # The first token is never counted: here it is a text's own.
        (TEXT, {"train_on": "all"}, "{{ messages[0]['content'] }}=", "0+212", 5),
    ],
    ids=["answer", "all", "chat template", "no special token"],
)
def test_tokens_without_text_have_no_part_in_bits_per_byte(
    row: Row, options: dict[str, Any], chat_template: str | None, spelled: str, size: int
) -> None:
    tokens = tokenizer(chat_template)
    found = example(row, 0, SFTData(dataset="d", **options), tokens, 64)
    assert tokens.decode(found.tokens[found.spells]) == spelled
    assert found.text_bytes == size


def test_a_character_of_several_tokens_counts_its_bytes_once() -> None:
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<bos>", eos_token="<eos>"
    )
    row = Row(prompt="a€", answer="é")
    found = example(row, 0, SFTData(dataset="d", train_on="all"), tokens, 64)
    # a, then three bytes of the sign, then two of the answer.
    assert (int(found.spells.sum()), found.text_bytes) == (6, 6)


def test_bits_per_byte_exclude_the_nats_of_tokens_without_bytes() -> None:
    """A uniform model: ln V nats for each token. Three rows of 2, 2 and 5 answer tokens, each with
    an end of sequence, which is in the loss and not in the bits."""
    loaded = tiny_model()
    head = loaded.model.get_output_embeddings()
    torch.nn.init.zeros_(head.weight)
    rows = [TEXT, Row(prompt="1", answer="34"), Row(prompt="2", answer="56789")]
    known = [example(row, 0, SFTData(dataset="d"), loaded.tokenizer, 64) for row in rows]

    alone = Ranks(0, 1, torch.device("cpu"))
    found = validate(TokenLogprobs(loaded.model), known, 1000, alone, TOKENS)

    vocabulary = head.weight.shape[0]
    assert found["validation/loss"] == pytest.approx(math.log(vocabulary), rel=1e-5)
    assert found["validation/bits_per_byte"] == pytest.approx(math.log2(vocabulary), rel=1e-5)


def test_a_prompt_that_the_chat_template_refuses_is_named_with_its_row() -> None:
    refusing = tokenizer("{{ raise_exception('no system message here') }}")
    with pytest.raises(UnusableRow, match=r"row 5: the chat template refuses .* no system message"):
        example(MESSAGES, 5, SFTData(dataset="d"), refusing, 64)


def test_unknown_characters_of_messages_are_those_of_their_contents() -> None:
    chat = Row(prompt=[{"role": "user", "content": "1 x"}], answer="1")
    with pytest.raises(UnusableRow, match="does not know: 'x'; add them"):
        example(chat, 5, SFTData(dataset="d"), tokenizer(TEMPLATE), 64)


def test_characters_without_a_token_are_found_once_each() -> None:
    assert lacking("y1x+x", tokenizer()) == ["x", "y"]
    assert lacking("1 + 2", tokenizer()) == []


def test_an_example_counts_as_often_as_its_dataset_is_named_and_never_in_both_parts() -> None:
    tokenizer_ = tokenizer()
    rows = [Row(prompt=f"{n}+1", answer=f"{n + 1}") for n in range(10)]
    data = SFTData(dataset="d")
    known = [example(row, n, data, tokenizer_, None) for n, row in enumerate(rows)]

    # The first four count three times.
    training, validation = divided([(one, 1 + 2 * (n < 4)) for n, one in enumerate(known)], 0.3, 7)

    times = [sum(one is each for each in training) for one in known]
    kept = [sum(one is each for each in validation) for one in known]
    assert sum(kept) == 3
    assert times == [0 if out else 1 + 2 * (n < 4) for n, out in enumerate(kept)]


class Datasets:
    """Where a run's datasets are, for one that is told only their names."""

    def __init__(self, root: Path, **rows: list[Row]) -> None:
        segments = {name: append_rows(root, name, some) for name, some in rows.items()}
        self._records = {
            name: DatasetRecord(
                id=name, name=name, rows=len(some), created=time.time(), segments=[segments[name]]
            )
            for name, some in rows.items()
        }

    def dataset(self, name: str, volume: Volume) -> DatasetReader:
        return DatasetReader(volume, self._records[name])


def mixture(*names: str) -> SFTConfig:
    first, *more = names
    made = parse_config(
        {
            "type": "sft",
            "model": {"path": "m"},
            "data": {"dataset": first, "mix": more},
            "training": {"validation_share": 0},
        }
    )
    assert isinstance(made, SFTConfig)
    return made


def test_a_mixture_has_the_rows_of_all_its_datasets(tmp_path: Path) -> None:
    rows = {"sums": [Row(prompt="1+1", answer="2")], "more": [Row(prompt="2*2", answer="4")]}
    here, volume, loaded = Datasets(tmp_path, **rows), Volume(tmp_path), tiny_model()

    training, _ = examples(mixture("sums", "more", "more"), loaded, here, volume)  # type: ignore[arg-type]

    read = sorted(loaded.tokenizer.decode(one.tokens) for one in training)
    assert read == ["<bos>1+12<eos>", "<bos>2*24<eos>", "<bos>2*24<eos>"]


def test_a_row_that_cannot_be_learned_is_named_with_its_dataset(tmp_path: Path) -> None:
    rows = {"sums": [Row(prompt="1+1", answer="2")], "more": [Row(prompt="2*2")]}
    here = Datasets(tmp_path, **rows)
    with pytest.raises(UnusableRow, match="in more, dataset row 0 has no answer to learn"):
        examples(mixture("sums", "more"), tiny_model(), here, Volume(tmp_path))  # type: ignore[arg-type]
