"""`rollout.episode: tools` with a real MCP server: the groups that a worker completes."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.contracts.config.model import BPETokenizer, ScratchModel
from tests.integration.rollout.working import Work, made_of
from tests.mcp_server import running

MODEL = ScratchModel(
    source="scratch",
    hidden_size=16,
    layers=1,
    heads=1,
    intermediate_size=16,
    max_length=4096,
    tokenizer=BPETokenizer(type="bpe", vocabulary=512),
)
PARSER = {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}
END = "<|im_end|>"


def calling(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{call}</tool_call>{END}"


async def test_tools_are_called_and_a_tool_that_fails_masks_its_sample(
    working: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call takes longer than a lease lasts without progress."""
    tokenizer = made_of(MODEL).tokenizer
    said = [
        calling("add", a=0, b=1, seconds=5),
        calling("endless"),
        calling("refuse", why="x"),
        f"1{END}",
    ]
    replies = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in said]
    with running() as url:
        monkeypatch.setenv("HEADRACE_MCP_SERVERS", f"sums={url},gone=no url")
        async with working(
            tmp_path,
            ["What is 0 + 1?"],
            {"replies": replies, "vocabulary": 512},
            None,
            MODEL,
            rollout={
                "episode": {"type": "tools", "servers": ["sums"]},
                "vllm": {"extra": PARSER},
                "groups_in_flight": 1,
                "lease_seconds": 2,
            },
            sampling={"max_tokens": 2000},
        ) as one:
            group = await one.group(0)
            log = one.stack.log("rollout-0").read_text()

    assert group.header.rewards == [1.0, None]
    assert group.lengths[1] == len(replies[1])
    played = group.tokens[: group.lengths[0]]
    sampled = played[group.loss_mask[: group.lengths[0]]].tolist()
    assert sampled == [*replies[0], *replies[2], *replies[3]]
    tool, answer = "\n<|im_start|>tool\n", f"{END}\n<|im_start|>assistant\n"
    assert tokenizer.decode(played) == (
        f"{said[0]}{tool}1{answer}"
        f"{said[2]}{tool}Error executing tool refuse: not today: x{answer}{said[3]}"
    )
    prompt = tokenizer.decode(group.prompt_tokens)
    assert all(f'"name": "{name}"' in prompt for name in ("add", "refuse", "endless"))
    assert "sampled nothing" not in log
    assert '"server": "gone"' in log
    assert url not in log
