"""On-policy distillation: a teacher scores the tokens that the policy has sampled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.batch.samples import group_samples, token_staleness
from learner.batch.staleness import Ancestry
from learner.batch.token_advantages import known, set_returns
from learner.errors import UnusableModel
from learner.metrics.reward_metrics import outcome_metrics, outcome_sums
from learner.model.loading.model_loader import load_model
from learner.model.passes.logprobs import TokenLogprobs
from learner.model.passes.microbatches import MicroBatches
from learner.model.reference_policies import CopiedPolicy, Copies, PolicyCopy, Scorers, load_copies
from learner.objective.compose import Objective
from learner.objective.value_loss import Scale
from learner.optim.optimizers import Optimizers
from learner.step import train_batch
from rollout.rewards.combine import combine
from services.contracts.config import ConfigError, RLConfig, parse_config
from services.contracts.config.objective.algorithm import Algorithm
from services.contracts.config.optimizer import AdamW
from services.contracts.groups.trajectory import decode, encode
from services.models.vocabulary import vocabulary_difference, vocabulary_in
from tests.unit.learner.policies import (
    random_samples,
    state_of,
    tensor,
    tiny_model,
    trajectory_group,
)
from tests.unit.learner.unigrams import ALONE

TAUGHT: dict[str, Any] = {
    "advantage": {"type": "reverse_kl"},
    "teacher": {"path": "run:t"},
    "loss": {"type": "reinforce"},
}


SERVED = TAUGHT | {"teacher": {"endpoint": "big"}}


def goal(**algorithm: Any) -> Objective:
    return Objective(Algorithm.model_validate(TAUGHT | algorithm), 1.0, 12)


def raw(**changes: Any) -> dict[str, Any]:
    config = {
        "model": {"path": "m"},
        "data": {"dataset": "d"},
        "rewards": [],
        "algorithm": TAUGHT,
    }
    return config | changes


def test_the_advantage_of_a_token_is_how_much_more_likely_the_teacher_finds_it() -> None:
    sample, other = random_samples(1, 2)
    sample.sampler_logprobs = tensor(-1.0, -2.0, -30.0)
    sample.teacher_logprobs = tensor(-3.0, -1.5, -1.0)
    set_returns([sample], goal(), ALONE.sum_named, Scale())
    assert sample.token_advantages is not None
    # No exp follows, so the token that is furthest from the teacher keeps its whole pull.
    assert sample.token_advantages.tolist() == [-2.0, 0.5, 29.0]
    sample.proximal_logprobs = tensor(-3.0, -1.0, -1.0)
    set_returns([sample], goal(proximal={"type": "recompute"}), ALONE.sum_named, Scale())
    assert sample.token_advantages.tolist() == [0.0, -0.5, 0.0]
    assert other.token_advantages is None


def test_a_step_goes_towards_the_teacher_and_says_how_far_it_is() -> None:
    """The gradient of −A · log π at the sampled tokens, A from the teacher's own passes."""
    student, teacher = tiny_model(0), tiny_model(1)
    samples = [sample for sample in random_samples(3, 3) if sample.trains]
    said = {}
    for name, model in (("student", student), ("teacher", teacher)):
        said[name] = [
            model.model(input_ids=one.tokens[None]).logits[0, :-1].log_softmax(-1)
            .gather(1, one.tokens[1:, None])[:, 0][one.loss_mask[1:]].detach()
            for one in samples
        ]  # fmt: skip
    for sample, logprobs in zip(samples, said["student"], strict=True):
        sample.sampler_logprobs = logprobs
    copies = Copies(teacher=PolicyCopy(TokenLogprobs(teacher.model)))
    before = teacher.model.state_dict()["model.embed_tokens.weight"].clone()
    optimizers = Optimizers(student.model, AdamW(lr=1e-3))

    metrics = train_batch(
        state_of(student, optimizers, copies),
        [samples],
        goal(),
        MicroBatches(ALONE, 1000),
        lambda _: 1.0,
    )

    apart = torch.cat(said["student"]) - torch.cat(said["teacher"])
    assert metrics["train/teacher_kl"] == pytest.approx(float(apart.mean()), rel=1e-4)
    for sample, ours, theirs in zip(samples, said["student"], said["teacher"], strict=True):
        torch.testing.assert_close(
            sample.token_advantages, (theirs - ours).double(), rtol=1e-4, atol=1e-5
        )
    assert torch.equal(before, teacher.model.state_dict()["model.embed_tokens.weight"])


def test_a_servers_scores_of_the_tokens_in_the_loss_are_the_teachers() -> None:
    served = goal(teacher={"endpoint": "big"})
    group = trajectory_group([1.0, 1.0])
    group.teacher_logprobs = -np.arange(len(group.tokens), dtype=np.float32)
    group = decode(encode(group))
    ancestry = Ancestry((("a", 1),))
    samples = group_samples(group, served.algorithm, 12, token_staleness(group, ancestry, 2))
    # Answers of two and of three tokens. The second token of each was not sampled.
    assert [known(one.teacher_logprobs).tolist() for one in samples] == [[0.0], [-2.0, -4.0]]

    student = tiny_model(0)
    optimizers = Optimizers(student.model, AdamW(lr=1e-3))
    state = state_of(student, optimizers, Copies())
    metrics = train_batch(state, [samples], served, MicroBatches(ALONE, 1000), lambda _: 1.0)

    ours = torch.cat([one.sampler_logprobs for one in samples])
    apart = ours - torch.tensor([0.0, -2.0, -4.0])
    assert metrics["train/teacher_kl"] == pytest.approx(float(apart.mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (raw(algorithm={}), "rewards is empty, and advantage group_zscore learns from them"),
        (raw(algorithm={"advantage": {"type": "reverse_kl"}}), "needs a teacher: set teacher.path"),
        (raw(algorithm={"teacher": {"path": "t"}}), "group_zscore has no use for a teacher"),
        (raw(algorithm=TAUGHT | {"teacher": {}}), "name one of path .* and endpoint"),
        (
            raw(algorithm=TAUGHT | {"teacher": {"path": "t", "endpoint": "big"}}),
            "name one of path .* and endpoint",
        ),
        (
            raw(algorithm=TAUGHT | {"teacher": {"path": "t", "model": "large"}}),
            "model is what an endpoint calls its model",
        ),
        (
            raw(algorithm=SERVED, sampling={"temperature": 0.7}),
            "sampling.temperature 0.7: algorithm.teacher.endpoint scores at temperature 1",
        ),
        (raw(algorithm=SERVED, sampling={"top_k": 20}), "sampling.top_k: algorithm.teacher"),
        (
            raw(algorithm=SERVED, placement={"teacher": "cuda:1"}),
            "placement.teacher cuda:1 places a model that this run does not load",
        ),
        (raw(algorithm=TAUGHT | {"dynamic_sampling": {}}), "dynamic_sampling chooses by rewards"),
        (
            raw(algorithm=TAUGHT | {"best_of": {"generation_size": 16}}),
            "best_of chooses by rewards",
        ),
        (raw(algorithm=TAUGHT | {"critic": {}}), "reverse_kl has no use for a critic"),
        (raw(evaluation={"dataset": "e"}), "evaluation needs rewards, and there are none"),
        (raw(data={"dataset": "d", "filter": {"low": 0.1}}), "data.filter needs rewards"),
        (
            {
                **raw(algorithm={}),
                "rewards": [{"verifier": "math"}],
                "training": {"offload": ["teacher"]},
            },
            "training.offload teacher is a model that this run does not load",
        ),
    ],
)
def test_a_config_that_does_not_fit_a_teacher_is_refused(
    config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_config(config)


def test_one_sample_of_a_prompt_is_enough() -> None:
    config = parse_config(raw(algorithm=TAUGHT | {"samples_per_prompt": 1}))
    assert isinstance(config, RLConfig)
    assert config.components == {}


def test_an_answer_without_verifiers_is_trained_and_leaves_out_reward_metrics() -> None:
    score = combine({}, {})
    assert (score.reward, score.status, score.components) == (0.0, "scored", {})
    group = trajectory_group([0.0, 0.0], statuses=["scored"] * 2)
    assert group.in_loss(False) == [True, True]
    metrics = outcome_metrics(outcome_sums([group], 2), 2, rewarded=False)
    assert not [name for name in metrics if name.startswith("reward/")]
    assert metrics["response/tokens_mean"] == 2.5


def test_a_difference_between_vocabularies_is_named() -> None:
    own = {"a": 0, "b": 1, "c": 2}
    assert vocabulary_difference(own, dict(own)) is None
    said = vocabulary_difference(own, {"a": 0, "b": 2, "c": 1})
    assert (
        said
        == "it has 3 tokens and the policy 3: 'b' as 2, which is 1 here; 'c' as 1, which is 2 here"
    )
    assert "no 'c', which is 2 here" in str(vocabulary_difference(own, {"a": 0, "b": 1}))
    assert "'d' as 3, unknown here" in str(vocabulary_difference(own, own | {"d": 3}))


def test_a_teacher_with_other_tokens_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    loaded = tiny_model()
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    own = loaded.tokenizer.get_vocab()
    assert vocabulary_in(tmp_path) == own
    assert vocabulary_in(tmp_path / "nowhere") is None
    config = parse_config(raw(model={"path": str(tmp_path)}))
    assert isinstance(config, RLConfig)
    policy = load_model(str(tmp_path), config.model)
    logprobs = TokenLogprobs(policy.model)
    folder = str(tmp_path)
    copied = CopiedPolicy(logprobs, ALONE, None, policy.tokenizer)
    copies = load_copies(config, copied, folder, folder, Scorers(folder))
    assert copies.teacher is not None
    assert copies.moving == {}
    policy.tokenizer.add_tokens(["ö"])
    with pytest.raises(UnusableModel, match=r"another tokenizer than the policy.*no 'ö'"):
        load_copies(config, copied, folder, folder, Scorers(folder))
