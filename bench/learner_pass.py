"""`python -m bench.learner_pass`: one side of the learner's benchmark, in a process of its own.

One JSON object on stdin says what to measure, one on stdout holds the figures. Needs torch and
transformers alone, as do the modules of `learner` that it uses.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from bench.simulated_gpus import LONGEST, MEDIAN, SPREAD
from learner.batch.packing import micro_batches
from learner.model.logprobs import TokenLogprobs, packed_row
from learner.model.mfu import Work, shape
from learner.model.moe_experts import use_pass_type_experts
from learner.model.packed_attention import use_packed_attention
from services.estimate.devices import peak_flops

TEMPERATURE = 0.8
LEARNING_RATE = 1e-6
SIGMA = SPREAD * 2**0.5
"""Of the logarithm of lengths, prompts and answers together, as the overlap benchmark has it."""


@dataclass(frozen=True)
class Batch:
    """Sequences [t] of token ids, each with `prompt` tokens that do not train before the others,
    and one advantage for each sequence."""

    sequences: list[torch.Tensor]
    prompt: int
    advantages: torch.Tensor

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [len(sequence) for sequence in self.sequences]

    @property
    def trained(self) -> int:
        """Tokens that train."""
        return sum(self.lengths) - self.prompt * len(self.sequences)


def make_batch(
    kind: str, sequences: int, prompt: int, longest: int, vocabulary: int, seed: int = 0
) -> Batch:
    """`kind`: mixed (lognormal answers of at most `longest` tokens, a quarter as long on average),
    or equal (`longest`)."""
    source, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def length() -> int:
        if kind == "equal":
            return longest
        answer = longest * MEDIAN / LONGEST * source.lognormvariate(0, SIGMA)
        return max(1, min(longest, round(answer)))

    tokens = [
        torch.randint(vocabulary, (prompt + length(),), generator=generator)
        for _ in range(sequences)
    ]
    return Batch(tokens, prompt, torch.randn(sequences, generator=generator))


def make_model(options: dict[str, Any], device: torch.device) -> PreTrainedModel:
    """Random float32 weights; the same for the same options."""
    config = AutoConfig.for_model(
        options["architecture"],
        hidden_size=options["hidden"],
        intermediate_size=options["intermediate"],
        num_hidden_layers=options["layers"],
        num_attention_heads=options["heads"],
        num_key_value_heads=options["kv_heads"],
        head_dim=options["hidden"] // options["heads"],
        vocab_size=options["vocabulary"],
        tie_word_embeddings=not options["untied"],
        max_position_embeddings=options["prompt"] + options["longest"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        use_cache=False,
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.train()
    if options["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.to(device)


Logprobs = Callable[[list[torch.Tensor], int], torch.Tensor]
"""The log-probabilities of the answers' tokens of one micro-batch, behind each other."""


def headrace(model: PreTrainedModel, autocast: torch.dtype | None) -> Logprobs:
    """As the learner does it: packed rows, attention within them, the output head in chunks."""
    use_packed_attention(model)
    use_pass_type_experts(model)
    policy = TokenLogprobs(model, autocast)

    def logprobs(sequences: list[torch.Tensor], prompt: int) -> torch.Tensor:
        loss_mask = [torch.arange(len(s)) >= prompt for s in sequences]
        return policy(packed_row(sequences, loss_mask, model.device), TEMPERATURE)[0]

    return logprobs


def plain(model: PreTrainedModel, autocast: torch.dtype | None) -> Logprobs:
    """As it is mostly written: padded rows through the whole model, log_softmax over all logits."""

    def logprobs(sequences: list[torch.Tensor], prompt: int) -> torch.Tensor:
        tokens = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(model.device)
        lengths = torch.tensor([len(s) for s in sequences], device=model.device)
        column = torch.arange(tokens.shape[1], device=model.device)
        real = column < lengths[:, None]
        with torch.autocast(model.device.type, autocast, enabled=autocast is not None):
            logits = model(input_ids=tokens, attention_mask=real.long()).logits
        every = torch.log_softmax(logits[:, :-1].float() / TEMPERATURE, -1)
        found = every.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        return found[(real & (column >= prompt))[:, 1:]]

    return logprobs


def padded_cuts(lengths: list[int], budget: int) -> list[list[int]]:
    """Indices of `lengths`, in their order, in micro-batches of at most `budget` tokens, padding
    counted; a longer sequence has one of its own."""
    cuts: list[list[int]] = []
    widest = 0
    for index, length in enumerate(lengths):
        widest = max(widest, length)
        if not cuts or widest * (len(cuts[-1]) + 1) > budget:
            cuts.append([])
            widest = length
        cuts[-1].append(index)
    return cuts


SIDES = {"headrace": (headrace, micro_batches), "plain": (plain, padded_cuts)}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Run one side's forward passes alone (`work` logprobs), or with backward passes and an update
    (step), `repeats` times after a first one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = resident("VmRSS")
    options, step = request["options"], request["work"] == "step"
    model = make_model(options, device)
    make, cut = SIDES[request["side"]]
    logprobs = make(model, torch.bfloat16 if options["dtype"] == "bfloat16" else None)
    names = ("lengths", "sequences", "prompt", "longest", "vocabulary")
    batch = make_batch(*(options[name] for name in names))
    cuts = cut(batch.lengths, options["tokens"])
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True) if step else None
    )
    seconds = []
    for _ in range(1 + options["repeats"]):
        began = time.perf_counter()
        with torch.set_grad_enabled(step):
            found = work(logprobs, batch, cuts, model, optimizer)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    took = statistics.median(seconds[1:])
    peak = resident("VmHWM") - before
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return {
        "seconds": seconds[1:],
        "median_seconds": took,
        "tokens_per_second": sum(batch.lengths) / took,
        "mfu": utilisation(model, batch, took, step),
        "peak_bytes": peak,
        "tokens": sum(batch.lengths),
        "trained_tokens": batch.trained,
        "passes": len(cuts),
        **found,
    }


def work(
    logprobs: Logprobs,
    batch: Batch,
    cuts: list[list[int]],
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer | None,
) -> dict[str, float]:
    """Once over the batch. Returns the mean log-probability, and the gradient's norm (both sides
    must compute the same)."""
    total = 0.0
    for chosen in cuts:
        found = logprobs([batch.sequences[i] for i in chosen], batch.prompt)
        total += float(found.detach().sum())
        if optimizer is not None:
            answers = torch.tensor([batch.lengths[i] - batch.prompt for i in chosen])
            advantages = batch.advantages[chosen].repeat_interleave(answers).to(found.device)
            ratio = (found - found.detach()).exp()
            (-(ratio * advantages).sum() / batch.trained).backward()
    figures = {"logprob_mean": total / batch.trained}
    if optimizer is not None:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        figures["grad_norm"] = float(norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return figures


def utilisation(model: PreTrainedModel, batch: Batch, seconds: float, step: bool) -> float | None:
    """MFU as metrics.jsonl has it; None if the device's peak or the model's work is not known."""
    sizes, device = shape(model), model.device
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if sizes is None or peak is None:
        return None
    squares = float(sum(length * length for length in batch.lengths))
    found = Work(*sizes, forward=0, peak=peak).metrics(
        float(sum(batch.lengths)), squares, 1.0 if step else 1 / 3, seconds
    )
    return found["train/mfu"]


def resident(field: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or at most so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))), flush=True)
