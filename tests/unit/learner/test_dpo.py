"""Direct preference optimisation: the loss of pairs, independent of their cut, and rows of
pairs."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from learner.batch.sft_rows import Example, RowTokenizer, UnusableRow
from learner.batch.sft_steps import Lengths, SFTSteps
from learner.distributed import Ranks
from learner.model.attention.packed import use_packed_attention
from learner.model.passes import families
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.objective.dpo import compare
from learner.sft import backward
from learner.supervised_loss import COMPARED, DPOLoss, compared, logprobs_of
from services.contracts.config import ConfigError, SFTConfig, parse_config
from services.contracts.config.data import SFTData
from services.contracts.config.objective.supervised import DPO
from services.contracts.rows.dataset import Row
from services.contracts.rows.mixture import Mixture, Source
from services.contracts.rows.preference import PAIR
from tests.unit.learner.policies import tiny_model
from tests.unit.learner.test_sft_rows import TEMPLATE
from tests.unit.learner.test_shared_prompts import SHAPE, exact
from tests.unit.learner.unigrams import ALONE

CONFIG = DPO(type="dpo", beta=0.3, label_smoothing=0.1)
Gradients = dict[str, torch.Tensor]


def test_the_loss_of_a_pair_is_the_one_worked_out_by_hand() -> None:
    """β = 0.5: the chosen answer has gained 2 nats on the reference and the rejected one lost 2, so
    Δ = 0.5 · (2 + 2) = 2."""
    policy, reference = torch.tensor([[-3.0], [-9.0]]), torch.tensor([[-5.0], [-7.0]])
    found = compare(policy, reference, 0.5)
    assert found.rewards.tolist() == [[1.0], [-1.0]]
    assert float(found.loss[0]) == pytest.approx(math.log1p(math.exp(-2)))
    smoothed = compare(policy, reference, 0.5, 0.25)
    expected = 0.75 * math.log1p(math.exp(-2)) + 0.25 * math.log1p(math.exp(2))
    assert float(smoothed.loss[0]) == pytest.approx(expected)


def model(seed: int, dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(seed)
    made: PreTrainedModel = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE))
    return exact(made) if dtype == torch.float64 else made


def pairs(count: int = 6) -> list[Example]:
    """Chosen and rejected answers of all lengths, twice for one prompt, from two datasets."""
    made = torch.Generator().manual_seed(1)

    def tokens(size: int) -> torch.Tensor:
        return torch.randint(3, SHAPE["vocab_size"], (size,), generator=made)

    rows: list[Example] = []
    prompt = tokens(5)
    for number in range(count):
        prompt = prompt if number == 1 else tokens(3 + 4 * (number % 3))
        for size in (1 + number, 7 - number):
            sequence = torch.cat([prompt, tokens(size)])
            mask = torch.arange(len(sequence)) >= len(prompt)
            rows.append(Example(sequence, mask, number % 2))
    return rows


def plain_logprob(policy: PreTrainedModel, row: Example) -> torch.Tensor:
    logits = policy(input_ids=row.tokens[None]).logits[0, :-1]
    chosen = logits.log_softmax(-1).gather(1, row.tokens[1:, None])[:, 0]
    return chosen[row.loss_mask[1:]].sum()


def plain(rows: list[Example], dtype: torch.dtype) -> tuple[float, Gradients]:
    """Loss and gradient as transformers and autograd compute them, sequence by sequence."""
    policy, reference = model(0, dtype), model(1, dtype)
    losses = []
    for i in range(0, len(rows), 2):
        with torch.no_grad():
            said = [plain_logprob(reference, rows[i + k]) for k in (0, 1)]
        ours = [plain_logprob(policy, rows[i + k]) for k in (0, 1)]
        margin = CONFIG.beta * ((ours[0] - said[0]) - (ours[1] - said[1]))
        right, wrong = margin.sigmoid().log(), (-margin).sigmoid().log()
        losses.append(-(1 - CONFIG.label_smoothing) * right - CONFIG.label_smoothing * wrong)
    loss = torch.stack(losses).mean()
    loss.backward()
    return float(loss.detach()), grads(policy)


def grads(policy: PreTrainedModel) -> Gradients:
    return {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


def packed(
    rows: list[Example], dtype: torch.dtype, budget: int
) -> tuple[dict[str, float], Gradients]:
    """Metrics and gradient of the learner."""
    policy, reference = (use_packed(model(seed, dtype)) for seed in (0, 1))
    frozen = logprobs_of(TokenLogprobs(reference), rows, MicroBatches(ALONE, budget))
    loss = DPOLoss(CONFIG, rows, frozen, 2, ALONE)
    backward(TokenLogprobs(policy), loss, MicroBatches(ALONE, budget))
    return loss.metrics(["a", "b"], ALONE), grads(policy)


def use_packed(made: PreTrainedModel) -> PreTrainedModel:
    use_packed_attention(made)
    return made


@pytest.fixture(params=[False, True], ids=["apart", "shared prompts"])
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "CPU_MERGE", 0)
    monkeypatch.setattr(families, "CPU_LEAST", 1 if request.param else 10**9)


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["float32", "float64"]
)
def test_loss_and_gradient_are_those_of_a_plain_computation_whatever_the_cut(
    dtype: torch.dtype, close: float
) -> None:
    rows = pairs()
    loss, expected = plain(rows, dtype)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for budget in (10_000, 40, 1):
        metrics, found = packed(rows, dtype, budget)
        assert metrics["train/loss"] == pytest.approx(loss, rel=close)
        assert found.keys() == expected.keys()
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=0, atol=close * max(largest, 1.0))


def test_metrics_are_means_over_the_pairs_of_all_datasets() -> None:
    rows = pairs()
    metrics, _ = packed(rows, torch.float64, 10_000)
    policy, reference = (
        torch.stack([plain_logprob(model(seed, torch.float64), row) for row in rows]).detach()
        for seed in (0, 1)
    )
    rewards = CONFIG.beta * (policy - reference)
    margins = rewards[::2] - rewards[1::2]
    assert metrics["train/margin"] == pytest.approx(float(margins.mean()))
    assert metrics["train/accuracy"] == pytest.approx(float((margins > 0).double().mean()))
    assert metrics["train/chosen_reward"] == pytest.approx(float(rewards[::2].mean()))
    assert metrics["train/rejected_logprob"] == pytest.approx(float(policy[1::2].mean()))
    assert metrics["train/loss"] == pytest.approx(
        (metrics["train/loss/a"] + metrics["train/loss/b"]) / 2
    )


def test_the_policy_that_is_its_reference_has_a_loss_of_log_2() -> None:
    said = torch.tensor([[-4.0, -2.0], [-1.0, -8.0]], dtype=torch.float64)
    loss, measured = compared(CONFIG, said, said)
    assert loss.tolist() == pytest.approx([math.log(2)] * 2)
    assert measured[:, COMPARED.index("accuracy")].tolist() == [0, 0]


def test_a_rank_without_pairs_takes_part_in_the_sums() -> None:
    both = Ranks(0, 1, torch.device("cpu"))
    policy = TokenLogprobs(use_packed(model(0, torch.float32)))
    loss = DPOLoss(CONFIG, [], torch.zeros(0), 1, both)
    assert backward(policy, loss, MicroBatches(both, 100)) == (0, 0)
    assert all(not grad.any() for grad in grads(policy.model).values())


# Rows.


def answers(row: Row) -> list[str]:
    """The texts in the loss of both sequences of `row`."""
    tokens, data = tiny_model().tokenizer, SFTData(dataset="d")
    tokens.chat_template = TEMPLATE
    found = []
    for which in PAIR:
        made = RowTokenizer(tokens, data, which).row(row, 3)
        (start, end), *more = made.spans
        assert not more
        found.append(tokens.decode(made.tokens[start:end]))
    return found


TURNS = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
ASKED = [*TURNS, {"role": "user", "content": "3"}]


@pytest.mark.parametrize(
    "row",
    [
        Row(prompt="1+1", answer={"chosen": "2", "rejected": "30"}),
        Row(prompt="1+1", columns={"chosen": "2", "rejected": "30"}),
        Row(
            prompt="1+1",
            answer={
                "chosen": {"role": "assistant", "content": "2"},
                "rejected": [{"role": "assistant", "content": "30"}],
            },
        ),
        Row(
            prompt=ASKED,
            answer={
                "chosen": [*ASKED, {"role": "assistant", "content": "2"}],
                "rejected": [*ASKED, {"role": "assistant", "content": "30"}],
            },
        ),
    ],
    ids=["answer", "columns", "messages", "conversations"],
)
def test_the_last_turn_alone_of_both_answers_is_in_the_loss(row: Row) -> None:
    assert answers(row) == ["2<eos>", "30<eos>"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(prompt="1", answer="2"), "has no `chosen` answer"),
        (Row(prompt="1", answer={"chosen": "2"}), "has no `rejected` answer"),
        (Row(prompt="1", answer={"chosen": 2, "rejected": "3"}), "a `chosen` answer that is none"),
        (
            Row(prompt="1", answer={"chosen": "2", "rejected": ASKED}),
            "a `rejected` answer that is none",
        ),
        (
            Row(prompt="4", answer={"chosen": "2", "rejected": TURNS}),
            "a `rejected` conversation that does not begin with the row's prompt",
        ),
    ],
)
def test_a_row_without_two_answers_is_refused_by_its_number(row: Row, reason: str) -> None:
    with pytest.raises(UnusableRow, match=f"dataset row 3 .*{reason}"):
        answers(row)


@pytest.mark.parametrize(("overlong", "taken", "skipped"), [("crop", [9, 13], 1), ("skip", [9], 2)])
def test_the_longer_answer_decides_whether_a_row_is_overlong(
    overlong: str, taken: Sequence[int], skipped: int
) -> None:
    """Rows of 4 + 5, 9 + 5 and 10 + 3 tokens, in which answers begin at 3, 3 and 8, with a limit of
    8: the second keeps 8 + 5, the third nothing of its longer answer."""
    config = parse_config(dpo(data={"dataset": "d", "overlong": overlong}, epochs=1))
    assert isinstance(config, SFTConfig)
    lengths = [Lengths(*(torch.tensor(x).numpy() for x in ([9, 14, 13], [3, 3, 8], [5, 9, 10])))]
    step = SFTSteps(config, Mixture([Source(3, 0, 3)], 0), lengths, 8).next()
    assert step is not None
    assert sorted(use.tokens for use in step.uses) == taken
    assert step.skipped == skipped


def dpo(**changes: Any) -> dict[str, Any]:
    training = {"rows_per_step": 3} | {k: changes.pop(k) for k in ("epochs",) if k in changes}
    return {
        "type": "sft",
        "objective": {"type": "dpo"},
        "model": {"path": "m"},
        "data": {"dataset": "d"},
        "training": training,
    } | changes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"source": "scratch"}}, "model.source scratch has random weights"),
        ({"packing": {"tokens_per_step": 64}, "training": {}}, "leave packing out"),
        ({"data": {"dataset": "d", "train_on": "all"}}, "leave train_on out"),
        (
            {
                "model": {"path": "m", "lora": {"rank": 4}},
                "optimizer": {"type": "adamw"},
                "training": {"offload": ["reference"]},
            },
            "with model.lora the reference is the policy without its adapters",
        ),
        (
            {"objective": {"type": "likelihood"}, "training": {"offload": ["reference"]}},
            "set objective.type dpo",
        ),
        ({"objective": {"beta": 0.2}}, "objective: needs a type: one of likelihood, dpo"),
    ],
)
def test_a_config_that_does_not_fit_pairs_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_config(dpo(**changes))


def test_a_reference_may_be_offloaded() -> None:
    config = parse_config(dpo(training={"offload": ["reference", "optimizer"]}))
    assert config.training.offload == ["reference", "optimizer"]
