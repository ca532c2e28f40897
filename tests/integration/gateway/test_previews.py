"""The first row of a run is shown with its submission, and any row by a preview."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.gateway.servers import Headrace, problems, upload
from tests.unit.rollout.chat_templates import CHATML, tokenizer_of

PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def chat_model(model: Path) -> Path:
    tokenizer = tokenizer_of(CHATML)
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.save_pretrained(model)
    return model


def test_a_submission_and_a_preview_show_rows_as_the_model_reads_them(
    api: httpx.Client, sums: None, submit: Any, chat_model: Path, headrace: Headrace
) -> None:
    config: dict[str, Any] = {
        "model": {"path": str(chat_model)},
        "data": {"dataset": "sums", "template": "{prompt}="},
    }

    record = submit(config).json()
    dry = api.post("/v1/runs?dry_run=true", json={"recipe": "grpo", "config": config}).json()
    asked = {"recipe": "grpo", "config": config, "start": 38, "rows": 5}
    preview = api.post("/v1/preview", json=asked).json()
    shown = headrace(
        *("preview", "sums", "--model", str(chat_model), "--rows", "1", "--start", "2"),
        *("--set", r"data.template=Q: {prompt}\n####"),
    )

    (row,) = record["preview"]["rows"]
    assert row["pieces"] == [{"text": PROMPT.format("0+1="), "trained": False}]
    assert (row["reference"], row["problem"]) == ("1", None)
    # Three special tokens, and one for each byte besides.
    assert row["tokens"] == len("user\n0+1=" + "\n" + "assistant\n") + 3
    assert api.get(f"/v1/runs/{record['id']}").json()["preview"] == dry["preview"]
    assert dry["preview"] == record["preview"]
    assert (preview["dataset"], preview["total"], preview["form"]) == ("sums", 40, "chat_template")
    texts = [row["pieces"][0]["text"] for row in preview["rows"]]
    assert texts == [PROMPT.format("38+1="), PROMPT.format("39+1=")]
    # Nobody scores here.
    (verdict,) = preview["rows"][0]["verdicts"]
    assert (verdict["verifier"], verdict["status"]) == ("math", "error")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[1:5] == [
        "  <|im_start|>user⏎",
        "  Q: 2+1⏎",
        "  ####<|im_end|>⏎",
        "  <|im_start|>assistant⏎",
    ]


def test_a_supervised_row_shows_what_is_trained_and_a_broken_one_refuses_the_run(
    api: httpx.Client, chat_model: Path
) -> None:
    rows = b'{"prompt": "1+1", "answer": "2"}\n{"prompt": "1+2", "answer": "3"}\n'
    upload(api, "pairs", rows)
    config: dict[str, Any] = {
        "type": "sft",
        "model": {"path": str(chat_model)},
        "data": {"dataset": "pairs"},
    }
    row = api.post("/v1/preview", json={"config": config}).json()["rows"][0]
    assert [piece["text"] for piece in row["pieces"] if piece["trained"]] == ["2<|im_end|>"]
    assert row["trained_tokens"] == 2

    config["data"] |= {"chat_template": "{% for m in messages %}{{ m.role }}{% endfor %}"}
    refused = problems(api.post("/v1/runs", json={"config": config}))
    assert "leaves out the text of message 1 (user), '1+1'" in refused["data.dataset"]
    row = api.post("/v1/preview", json={"config": config}).json()["rows"][0]
    assert "leaves out the text" in row["problem"]


def test_a_preview_shows_rows_for_a_model_that_the_run_does_not_fit(
    api: httpx.Client, sums: None, submit: Any, chat_model: Path
) -> None:
    settings = json.loads((chat_model / "config.json").read_text())
    settings["max_position_embeddings"] = 64
    (chat_model / "config.json").write_text(json.dumps(settings))
    config = {
        "model": {"path": str(chat_model)},
        "data": {"dataset": "sums", "template": "{prompt}=" + "?" * 80},
    }
    asked = {"recipe": "grpo", "config": config}
    refused = problems(submit(config))
    assert "is more than the 64 positions of the model" in refused["rollout.vllm.max_model_len"]

    shown = api.post("/v1/preview", json=asked).json()
    assert "0+1=????" in shown["rows"][0]["pieces"][0]["text"]
    assert [
        text.partition(": a run would be refused: ")[::2] for text in shown["warnings"][:2]
    ] == [
        ("rollout.vllm.max_model_len", refused["rollout.vllm.max_model_len"]),
        (
            "data.dataset",
            "none of the 40 rows of sums fits: they have 103 to 104 tokens, and a prompt may "
            "have 63 (the model's positions 64, which prompt and answer share); raise the limit, "
            "upload shorter prompts, or set data.long_prompts to cut",
        ),
    ]


def test_a_folder_without_a_tokenizer_is_refused(submit: Any, model: Path) -> None:
    (model / "tokenizer_config.json").unlink()
    refused = problems(submit({"model": {"path": str(model)}}))
    assert f"{model} holds no tokenizer" in refused["model.path"]
