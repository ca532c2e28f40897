"""A tokenizer that a run trains says every text, its chats end as its texts do, and it repeats."""

from learner.batch.sft_rows import RowTokenizer
from learner.model.loading.scratch import make_model, train_merges
from services.contracts.config.data import SFTData
from services.contracts.config.model import BPETokenizer, ScratchModel
from services.contracts.dataset import Row

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
