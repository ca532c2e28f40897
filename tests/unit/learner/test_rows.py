"""What midtraining teaches is what sampling asks: prompts are rendered as rollout workers do."""

import time
from pathlib import Path
from typing import Any

import pytest

from learner.midtrain import lessons
from learner.rows import UnusableRow, divided, lacking, lesson
from services.contracts.config import MidtrainConfig, parse_config
from services.contracts.config.data import Data, MidtrainData
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
def test_a_lesson_s_prompt_is_the_rollout_s(
    row: Row, options: dict[str, Any], chat_template: str | None, read: str
) -> None:
    tokens = tokenizer(chat_template)
    rollout = Data(dataset="d", **options)
    asked = render(compose(row, rollout), rollout, tokens)

    found = lesson(row, 0, MidtrainData(dataset="d", **options), tokens, 64)

    assert tokens.decode(asked) == read
    assert found.tokens.tolist() == [*asked, 5, 6, 2]
    assert found.wanted.tolist() == [False] * len(asked) + [True] * 3


def test_a_prompt_that_the_chat_template_refuses_is_named_with_its_row() -> None:
    refusing = tokenizer("{{ raise_exception('no system message here') }}")
    with pytest.raises(UnusableRow, match=r"row 5: the chat template refuses .* no system message"):
        lesson(MESSAGES, 5, MidtrainData(dataset="d"), refusing, 64)


def test_unknown_characters_of_messages_are_those_of_their_contents() -> None:
    chat = Row(prompt=[{"role": "user", "content": "1 x"}], answer="1")
    with pytest.raises(UnusableRow, match="does not know: 'x'; add them"):
        lesson(chat, 5, MidtrainData(dataset="d"), tokenizer(TEMPLATE), 64)


def test_characters_without_a_token_are_found_once_each() -> None:
    assert lacking("y1x+x", tokenizer()) == ["x", "y"]
    assert lacking("1 + 2", tokenizer()) == []


def test_a_lesson_counts_as_often_as_its_dataset_is_named_and_never_in_both_parts() -> None:
    tokenizer_ = tokenizer()
    rows = [Row(prompt=f"{n}+1", answer=f"{n + 1}") for n in range(10)]
    data = MidtrainData(dataset="d")
    known = [lesson(row, n, data, tokenizer_, None) for n, row in enumerate(rows)]

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


def mixture(*names: str) -> MidtrainConfig:
    first, *more = names
    made = parse_config(
        {
            "type": "midtrain",
            "model": {"path": "m"},
            "data": {"dataset": first, "mix": more},
            "training": {"validation_share": 0},
        }
    )
    assert isinstance(made, MidtrainConfig)
    return made


def test_a_mixture_has_the_rows_of_all_its_datasets(tmp_path: Path) -> None:
    rows = {"sums": [Row(prompt="1+1", answer="2")], "more": [Row(prompt="2*2", answer="4")]}
    here, volume, loaded = Datasets(tmp_path, **rows), Volume(tmp_path), tiny_model()

    training, _ = lessons(mixture("sums", "more", "more"), loaded, here, volume)  # type: ignore[arg-type]

    read = sorted(loaded.tokenizer.decode(one.tokens) for one in training)
    assert read == ["<bos>1+12<eos>", "<bos>2*24<eos>", "<bos>2*24<eos>"]


def test_a_row_that_cannot_be_learned_is_named_with_its_dataset(tmp_path: Path) -> None:
    rows = {"sums": [Row(prompt="1+1", answer="2")], "more": [Row(prompt="2*2")]}
    here = Datasets(tmp_path, **rows)
    with pytest.raises(UnusableRow, match="in more, dataset row 0 has no answer to learn"):
        lessons(mixture("sums", "more"), tiny_model(), here, Volume(tmp_path))  # type: ignore[arg-type]
