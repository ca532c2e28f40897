"""A tokenizer that a run trains encodes every text, ends chats as it ends texts, and is
reproducible."""

import json
from typing import Any

from learner.batch.sft_rows import RowTokenizer
from learner.model.loading.scratch import make_model, merging_tokenizer, train_merges
from learner.sft_data.row_texts import texts_of
from services.contracts.config.data import SFTData
from services.contracts.config.model import BPETokenizer, ScratchModel
from services.contracts.rows.dataset import Row

MADE = BPETokenizer(type="bpe", vocabulary=512)
TEXTS = ["the cat sat on the mat", "the dog ate the cat"] * 20


def test_a_tokenizer_is_trained_on_the_rows_and_says_any_text() -> None:
    merges = train_merges(MADE, iter(TEXTS))
    assert train_merges(MADE, iter(TEXTS)) == merges
    config = ScratchModel(
        source="scratch", hidden_size=16, layers=1, heads=2, max_length=64, tokenizer=MADE
    )
    loaded = make_model(config, 0, merges=merges)
    tokenizer = loaded.tokenizer

    assert tokenizer.tokenize("the cat") == ["the", "Ġcat"]
    odd = tokenizer("né €", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(odd) == "né €"
    assert len(tokenizer) <= 512
    assert loaded.model.get_input_embeddings().num_embeddings == 512
    row = RowTokenizer(tokenizer, SFTData(dataset="d")).row(Row(prompt="the", answer="cat"), 0)
    assert row.tokens[0] == tokenizer.bos_token_id
    ((start, end),) = row.spans.tolist()
    assert tokenizer.decode(row.tokens[start:end]) == "cat<|im_end|>"
    assert row.tokens[end - 1] == tokenizer.eos_token_id


def test_tools_and_calls_are_written_and_the_calls_are_trained() -> None:
    function: dict[str, Any] = {"name": "calculate", "arguments": {"expression": "27+35"}}
    call: dict[str, Any] = {"id": "1", "type": "function", "function": function}
    tool = {"type": "function", "function": {"name": "calculate", "parameters": {}}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "27+35"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "62", "tool_call_id": "1"},
    ]
    row = Row(prompt=turns, answer="62", columns={"tools": [tool]})
    found = list(texts_of(row))
    assert found[0] == "user"
    assert json.loads(found[-1]) == [tool]

    tokenizer = merging_tokenizer(train_merges(MADE, found * 20), 256)
    made = RowTokenizer(tokenizer, SFTData(dataset="d")).row(row, 0)
    begun, ended = ((made.tokens[start:end]) for start, end in made.spans)
    written = json.dumps(function)
    assert tokenizer.decode(begun) == f"<tool_call>{written}</tool_call><|im_end|>"
    assert tokenizer.decode(ended) == "62<|im_end|>"
    assert json.dumps(tool) in tokenizer.decode(made.tokens)
    # Digits are separate tokens, which a small model needs to copy a number.
    assert tokenizer.tokenize("27+35") == ["2", "7", "+", "3", "5"]

    # A client sends the arguments of a call as text.
    turns[1]["tool_calls"] = [{**call, "function": {**function, "arguments": '{"x": 1}'}}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    assert '"arguments": {"x": 1}}</tool_call>' in text
