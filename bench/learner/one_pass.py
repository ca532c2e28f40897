"""`python -m bench.learner.one_pass`: one side of the learner's benchmark, in a process of its own.

A JSON object on stdin says what to measure. The last line of stdout has the figures. Needs only
torch and transformers. So do all modules of `learner` imported here.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from learner.model.attention.packed import use_packed_attention
from learner.model.compiling import compiles, make_trainable
from learner.model.passes.families import cost_of, cut, families_of, sharing_of
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.model.passes.mfu import Work, shape
from services.estimate.devices import peak_flops

TEMPERATURE = 0.8
LEARNING_RATE = 1e-6
MEDIAN, SIGMA = 0.156, 0.92
"""Answers are lognormal: the median as a share of the longest, and sigma. The mean is a quarter of
the longest, and 2 in 100 answers are truncated, as in runs of long reasoning."""


@dataclass(frozen=True)
class Batch:
    """Sequences of token ids, each of shape [t], and one advantage for each. The first `prompt`
    tokens of a sequence do not train."""

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
    kind: str, sequences: int, prompt: int, longest: int, vocabulary: int, answers: int = 1
) -> Batch:
    """Make a batch. `kind`: mixed (lognormal answers of at most `longest` tokens, a quarter as long
    on average), or equal (`longest`). `answers`: sequences that share one prompt."""
    source, generator = random.Random(0), torch.Generator().manual_seed(0)

    def length() -> int:
        if kind == "equal":
            return longest
        answer = longest * MEDIAN * source.lognormvariate(0, SIGMA)
        return max(1, min(longest, round(answer)))

    tokens: list[torch.Tensor] = []
    for number in range(sequences):
        sequence = torch.randint(vocabulary, (prompt + length(),), generator=generator)
        if number % answers:
            sequence[:prompt] = tokens[-1][:prompt]
        tokens.append(sequence)
    return Batch(tokens, prompt, torch.randn(sequences, generator=generator))


def make_model(options: dict[str, Any], device: torch.device) -> PreTrainedModel:
    """Make a model with random float32 weights on `device`. Equal options give equal weights."""
    config = AutoConfig.for_model(
        options["architecture"],
        hidden_size=options["hidden"],
        intermediate_size=options["intermediate"],
        num_hidden_layers=options["layers"],
        num_attention_heads=options["heads"],
        num_key_value_heads=options["kv_heads"],
        head_dim=options["head_dim"] or options["hidden"] // options["heads"],
        vocab_size=options["vocabulary"],
        tie_word_embeddings=not options["untied"],
        max_position_embeddings=options["prompt"] + options["longest"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        use_cache=False,
    )
    torch.manual_seed(0)
    with device:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


Passes = Callable[[Batch, int], Iterator[tuple[list[int], int, torch.Tensor]]]
"""Micro-batches of a batch, given the most tokens of one. Each has the indices of its sequences,
the tokens computed, and the log-probabilities of the answers' tokens, concatenated."""


def headrace(
    model: PreTrainedModel,
    autocast: torch.dtype | None,
    options: dict[str, Any],
    shared: bool = True,
) -> Passes:
    """The learner's own pass, with a model prepared as for a run: packed rows, attention within
    each sequence, the output head in chunks. With `shared`, answers share the computation of
    their prompt if that saves time."""
    use_packed_attention(model)
    compiled, why = compiles(COMPILE[options["compile"]], model, model.device)
    make_trainable(model, options["checkpointing"], compiled)
    print(f"blocks compiled: {why}", file=sys.stderr, flush=True)
    policy = TokenLogprobs(model, autocast)

    def passes(batch: Batch, budget: int) -> Iterator[tuple[list[int], int, torch.Tensor]]:
        masks = [torch.arange(length) >= batch.prompt for length in batch.lengths]
        sharing = sharing_of(policy) if shared else None
        samples: list[Any] = [
            SimpleNamespace(tokens=tokens, loss_mask=mask, experts=None)
            for tokens, mask in zip(batch.sequences, masks, strict=True)
        ]
        families = families_of(samples, budget, sharing, cost_of(policy))
        for chosen in cut(families, budget, None):
            members = [i for family in chosen for i in family.members]
            row = packed_row(
                [batch.sequences[i] for i in members],
                [masks[i] for i in members],
                model.device,
                shared=[n for family in chosen for n in family.shared],
            )
            yield members, len(row.tokens), policy(row, TEMPERATURE)[0]

    return passes


def unshared(
    model: PreTrainedModel, autocast: torch.dtype | None, options: dict[str, Any]
) -> Passes:
    """The learner's own pass, with a prompt for each answer."""
    return headrace(model, autocast, options, shared=False)


def plain(model: PreTrainedModel, autocast: torch.dtype | None, options: dict[str, Any]) -> Passes:
    """The usual code: padded rows through the whole model, log_softmax over all logits."""
    model.train()
    if options["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def passes(batch: Batch, budget: int) -> Iterator[tuple[list[int], int, torch.Tensor]]:
        for chosen in padded_cuts(batch.lengths, budget):
            computed = len(chosen) * max(batch.lengths[i] for i in chosen)
            yield chosen, computed, logprobs([batch.sequences[i] for i in chosen], batch.prompt)

    def logprobs(sequences: list[torch.Tensor], prompt: int) -> torch.Tensor:
        tokens = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True).to(model.device)
        lengths = torch.tensor([len(s) for s in sequences], device=model.device)
        column = torch.arange(tokens.shape[1], device=model.device)
        real = column < lengths[:, None]
        with torch.autocast(model.device.type, autocast, enabled=autocast is not None):
            logits = model(input_ids=tokens, attention_mask=real.long()).logits
        every = torch.log_softmax(logits[:, :-1].float() / TEMPERATURE, -1)
        token_logprobs = every.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        return token_logprobs[(real & (column >= prompt))[:, 1:]]

    return passes


def padded_cuts(lengths: list[int], budget: int) -> list[list[int]]:
    """Cut `lengths`, in their order, into micro-batches of at most `budget` tokens with padding. A
    longer sequence has a micro-batch of its own. Return the indices of each."""
    cuts: list[list[int]] = []
    widest = 0
    for index, length in enumerate(lengths):
        widest = max(widest, length)
        if not cuts or widest * (len(cuts[-1]) + 1) > budget:
            cuts.append([])
            widest = length
        cuts[-1].append(index)
    return cuts


COMPILE: dict[str, Literal["auto"] | bool] = {"auto": "auto", "on": True, "off": False}
SIDES = {"headrace": headrace, "unshared": unshared, "plain": plain}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Measure one side `repeats` times after a first one. `work` is `logprobs` (forward passes) or
    `step` (forward and backward passes, and an update)."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    before = resident("VmRSS")
    options, step = request["options"], request["work"] == "step"
    model = make_model(options, device)
    autocast = torch.bfloat16 if options["dtype"] == "bfloat16" else None
    passes = SIDES[request["side"]](model, autocast, options)
    names = ("lengths", "sequences", "prompt", "longest", "vocabulary", "answers")
    batch = make_batch(*(options[name] for name in names))
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True) if step else None
    )
    seconds, cpu = [], []
    for _ in range(1 + options["repeats"]):
        began, before_cpu = time.perf_counter(), time.process_time()
        with torch.set_grad_enabled(step):
            figures = work(passes, batch, options["tokens"], model, optimizer)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - before_cpu)
    took = statistics.median(seconds[1:])
    peak = resident("VmHWM") - before
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return {
        "seconds": seconds[1:],
        "median_seconds": took,
        "median_cpu_seconds": statistics.median(cpu[1:]),
        "tokens_per_second": sum(batch.lengths) / took,
        "mfu": utilisation(model, batch, figures["computed_tokens"], took, step),
        "peak_bytes": peak,
        "tokens": sum(batch.lengths),
        "trained_tokens": batch.trained,
        **figures,
    }


def work(
    passes: Passes,
    batch: Batch,
    budget: int,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer | None,
) -> dict[str, float]:
    """Go over the batch once. Return the number of passes, the tokens computed, the mean
    log-probability and, with an optimizer, the gradient's norm."""
    total = count = tokens = 0.0
    for chosen, computed, logprobs in passes(batch, budget):
        count, tokens = count + 1, tokens + computed
        total += float(logprobs.detach().sum())
        if optimizer is not None:
            answers = torch.tensor([batch.lengths[i] - batch.prompt for i in chosen])
            advantages = batch.advantages[chosen].repeat_interleave(answers).to(logprobs.device)
            ratio = (logprobs - logprobs.detach()).exp()
            (-(ratio * advantages).sum() / batch.trained).backward()
    figures = {"passes": count, "computed_tokens": tokens, "logprob_mean": total / batch.trained}
    if optimizer is not None:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        figures["grad_norm"] = float(norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return figures


def utilisation(
    model: PreTrainedModel, batch: Batch, computed: float, seconds: float, step: bool
) -> float | None:
    """MFU as in metrics.jsonl. None if the device's peak or the model's FLOPs are not known."""
    sizes, device = shape(model), model.device
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if sizes is None or peak is None:
        return None
    # A shared prompt counts once. Padding does not count.
    tokens = float(sum(batch.lengths))
    share = min(1.0, computed / tokens)
    squares = float(sum(length * length for length in batch.lengths))
    metrics = Work(*sizes, forward=0, peak=peak).metrics(
        tokens * share, squares * share, 1.0 if step else 1 / 3, seconds
    )
    return metrics["train/mfu"]


def resident(field: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or its peak so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what `measure` returns, or `failed`: why the GPU has too little memory."""
    try:
        return measure(request)
    except torch.OutOfMemoryError as error:
        return {"failed": f"out of memory: {str(error).partition(' (')[0][:300]}"}


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))), flush=True)
