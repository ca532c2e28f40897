"""Talking to a checkpoint: the rendered prompt, the answer, and warnings."""

import io
import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.saving import save_description, weight_tensors
from learner.tools import chat
from services.contracts.config.data import Data
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose, render
from tests.unit.learner.policies import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A model folder, in the form of a checkpoint."""
    loaded = tiny_model()
    save_description(loaded, tmp_path)
    weights = {name: tensor.contiguous() for name, tensor in weight_tensors(loaded.model).items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return str(tmp_path)


def test_chat_prints_only_the_answer(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main([folder, "1+2=", "--max-tokens", "4"]) == 0
    said = capsys.readouterr()
    assert (said.out.count("\n"), said.err) == (1, "")


def test_an_answer_that_the_limit_cuts_gives_a_note(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No token ends an answer.
    monkeypatch.setattr(chat, "end_tokens", lambda loaded: set())
    asked = [folder, "1+2=", "--max-tokens", "4"]
    assert chat.main(asked) == 0
    assert capsys.readouterr().err == "the answer was cut at 4 tokens: --max-tokens allows more\n"
    assert chat.main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "length"


def test_characters_that_the_model_cannot_read_are_named(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat.main([folder, "y1+x=", "--max-tokens", "4"]) == 0
    assert capsys.readouterr().err == "warning: the tokenizer has no 'x', 'y'\n"


def test_lines_are_answered_one_by_one(
    folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1+2=\n3+x=\n"))
    assert chat.main([folder, "--max-tokens", "4"]) == 0
    said = capsys.readouterr()
    assert (said.out.count("\n"), said.err) == (2, "warning: the tokenizer has no 'x'\n")


def test_the_chat_template_gets_the_variables_of_the_run(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(
        loaded: LoadedModel, ids: list[int], max_tokens: int, temperature: float
    ) -> tuple[str, str]:
        asked.append(loaded.tokenizer.decode(ids))
        return "", "stop"

    monkeypatch.setattr(chat, "answer", answer)
    template = "--chat-template={{ messages[0].content }}{{ sign }}"
    assert chat.main([folder, "1+2", template, '--chat-template-kwargs={"sign": "="}']) == 0
    assert asked == ["1+2="]
    with pytest.raises(SystemExit):
        chat.main([folder, "1+2", "--chat-template-kwargs=[1]"])


def test_a_prompt_is_rendered_as_in_a_run_with_these_options(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    def answer(loaded: LoadedModel, ids: list[int], *_: float) -> tuple[str, str]:
        asked.append(ids)
        return "", "stop"

    monkeypatch.setattr(chat, "answer", answer)
    options = ["--template", "{prompt}=", "--system", "7", "--chat-template", "none"]
    chat.main([folder, "1+2", *options])

    data = Data(dataset="d", template="{prompt}=", system="7", chat_template="none")
    assert asked == [render(compose(Row(prompt="1+2"), data), data, tiny_model().tokenizer)]


def test_a_template_without_a_place_for_the_prompt_is_refused(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        chat.main([folder, "1", "--template", "x"])
    assert "--template 'x' lacks the placeholder {prompt}" in capsys.readouterr().err
