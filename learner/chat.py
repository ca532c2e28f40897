"""`python -m learner.chat PATH [PROMPT]`: talk to a checkpoint or any Hugging Face folder.

Greedy unless --temperature is given; the chat template is used where the tokenizer has one.
"""

import argparse
import sys
from typing import Any

import torch

from learner.models import LoadedModel, UnusableModel, end_tokens, load_model
from services.contracts.config.model import PretrainedModel


def main(arguments: list[str] | None = None) -> int:
    """Answer one prompt, or one a line from standard input. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m learner.chat", description=__doc__)
    parser.add_argument("path", help="a checkpoint folder, e.g. runs/ID/checkpoints/step-000100")
    parser.add_argument("prompt", nargs="?", help="without one, prompts are read line by line")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--system", help="system message, for models with a chat template")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        loaded = load_model(options.path, PretrainedModel(path=options.path), device)
    except UnusableModel as error:
        print(error, file=sys.stderr)
        return 2
    if options.prompt is not None:
        print(answer(loaded, options.prompt, options))
        return 0
    interactive = sys.stdin.isatty()
    try:
        while line := _read(interactive):
            print(answer(loaded, line, options), flush=True)
    except (EOFError, KeyboardInterrupt):
        return 0
    return 0


def answer(loaded: LoadedModel, prompt: str, options: argparse.Namespace) -> str:
    """The model's completion of `prompt`, without special tokens."""
    tokenizer: Any = loaded.tokenizer
    if tokenizer.chat_template:
        chat = [{"role": "system", "content": options.system}] if options.system else []
        ids = tokenizer.apply_chat_template(
            [*chat, {"role": "user", "content": prompt}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
    else:
        ids = tokenizer(prompt)["input_ids"]
    inputs = torch.tensor([ids], device=loaded.model.device)
    sampling: dict[str, Any] = (
        {"do_sample": True, "temperature": options.temperature}
        if options.temperature > 0
        else {"do_sample": False}
    )
    with torch.inference_mode():
        output = loaded.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=options.max_tokens,
            eos_token_id=sorted(end_tokens(loaded)) or None,
            pad_token_id=tokenizer.pad_token_id or 0,
            use_cache=True,
            **sampling,
        )
    text: str = tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
    return text


def _read(interactive: bool) -> str:
    return input("> " if interactive else "")


if __name__ == "__main__":
    sys.exit(main())
