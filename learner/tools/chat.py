"""`python -m learner.tools.chat PATH [PROMPT]`: talk to a checkpoint or any Hugging Face folder.

Sampling is greedy unless --temperature is given. Prompts are rendered as rollout workers render
them. --system, --template, --chat-template and --chat-template-kwargs are keys of a run's `data`
section, which a checkpoint does not contain.
"""

import argparse
import json
import sys
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from headrace.terminal import escape_output
from headrace.wording import cut_at
from learner.batch.sft_rows import lacking
from learner.errors import UnusableModel
from learner.model.loading.model_loader import LoadedModel, end_tokens, load_model
from services.contracts.config.data import PromptOptions
from services.contracts.config.model import PretrainedModel
from services.contracts.rows.dataset import Row
from services.contracts.rows.rendering import compose, plain_text, render, use_template


def main(arguments: list[str] | None = None) -> int:
    """Answer one prompt, or each line of standard input. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m learner.tools.chat", description=__doc__)
    parser.add_argument("path", help="a checkpoint folder, e.g. runs/ID/checkpoints/step-000100")
    parser.add_argument("prompt", nargs="?", help="without one, prompts are read line by line")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--system", help="system message")
    parser.add_argument(
        "--template", default="{prompt}", help="what a prompt is put into, e.g. '{prompt}='"
    )
    parser.add_argument(
        "--chat-template",
        default="auto",
        help="auto: the tokenizer's, if it has one; none; or a template's text",
    )
    parser.add_argument(
        "--chat-template-kwargs", default="{}", help="variables of the chat template, as JSON"
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    options = parser.parse_args(arguments)
    if "{prompt}" not in options.template:
        parser.error(f"--template {options.template!r} lacks the placeholder {{prompt}}")
    try:
        rendering = PromptOptions(
            system=options.system,
            template=options.template,
            chat_template=options.chat_template,
            chat_template_kwargs=json.loads(options.chat_template_kwargs),
        )
    except ValueError as error:
        parser.error(str(error))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    disable_progress_bar()
    try:
        loaded = load_model(options.path, PretrainedModel(path=options.path), device)
    except UnusableModel as error:
        print(error, file=sys.stderr)
        return 2
    use_template(loaded.tokenizer, rendering)
    if options.prompt is not None:
        return _say(loaded, options.prompt, rendering, options)
    interactive = sys.stdin.isatty()
    try:
        while line := input("> " if interactive else ""):
            _say(loaded, line, rendering, options)
    except (EOFError, KeyboardInterrupt):
        return 0
    return 0


def _say(
    loaded: LoadedModel, prompt: str, rendering: PromptOptions, options: argparse.Namespace
) -> int:
    """Print the answer, or the reason for its absence. Returns the exit code."""
    asked = compose(Row(prompt=prompt), rendering)
    try:
        ids = render(asked, rendering, loaded.tokenizer)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if unknown := lacking(plain_text(asked), loaded.tokenizer):
        named = ", ".join(map(repr, unknown))
        print(f"warning: the tokenizer has no {named}", file=sys.stderr, flush=True)
    text, ending = answer(loaded, ids, options.max_tokens, options.temperature)
    if options.json:
        print(json.dumps({"answer": text, "finish_reason": ending}), flush=True)
        return 0
    print(text, flush=True)
    if ending == "length":
        print(cut_at(options.max_tokens), file=sys.stderr, flush=True)
    return 0


def answer(
    loaded: LoadedModel, ids: list[int], max_tokens: int, temperature: float
) -> tuple[str, str]:
    """Return the model's completion of the prompt `ids`, without special tokens; and `length` if
    `max_tokens` cut it, else `stop`."""
    tokenizer: Any = loaded.tokenizer
    inputs = torch.tensor([ids], device=loaded.model.device)
    sampling: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
    )
    ends = end_tokens(loaded)
    with torch.inference_mode():
        output = loaded.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_tokens,
            eos_token_id=sorted(ends) or None,
            pad_token_id=tokenizer.pad_token_id or 0,
            use_cache=True,
            **sampling,
        )
    made = output[0, len(ids) :]
    text: str = tokenizer.decode(made, skip_special_tokens=True)
    is_cut = len(made) >= max_tokens and int(made[-1]) not in ends
    return text, "length" if is_cut else "stop"


if __name__ == "__main__":
    escape_output()
    sys.exit(main())
