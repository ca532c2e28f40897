"""Versions as deltas: exact, whole when necessary, and on disk while they are needed."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from learner.distributed import Ranks
from learner.model.loading.lora import add_adapters
from learner.model.loading.model_loader import LoadedModel
from learner.model.loading.scratch import make_model
from learner.model.passes.logprobs import TokenLogprobs, packed_row
from learner.optim.optimizers import Optimizers
from learner.publishing import delta_files
from learner.publishing.publisher import Again, Publisher
from learner.publishing.versions import Versions, host_weights
from services.contracts.canary import Canary, packed
from services.contracts.config.lora import LoRA
from services.contracts.config.model import ScratchModel
from services.contracts.config.optimizer import AdamW
from services.contracts.config.rollout import PublishedAs
from services.contracts.records import WorkerRecord
from services.contracts.weights import WeightManifest
from services.weights import DeltaReader
from tests.unit.learner.experts import tiny_mixture
from tests.unit.learner.policies import random_samples, tiny_model
from tests.unit.learner.test_loading import publishing_run, whole_disk
from tests.unit.weights.files import read_version

ALONE = Ranks(0, 1, torch.device("cpu"))
# Enough weights that the overhead of a delta for each tensor does not count.
BROAD = ScratchModel(
    source="scratch", hidden_size=256, layers=2, heads=4, intermediate_size=768, max_length=64
)


def half(loaded: LoadedModel) -> LoadedModel:
    loaded.publish_dtype = torch.bfloat16
    return loaded


@dataclass
class Run:
    """A learner that publishes, without a store."""

    root: Path
    loaded: LoadedModel
    weights: PublishedAs = "auto"
    lineage: str = "a"
    version: int = -1
    registered: list[WeightManifest] = field(default_factory=list)
    workers: list[WorkerRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = Versions(self.loaded, ALONE, self.weights)
        run = publishing_run(self.registered.append, lambda: self.workers)
        lineages = sorted({"a", self.lineage})
        disk = whole_disk(self.root)
        self.publisher = Publisher(run, lineages, disk, self.versions.compares)

    def publish(self) -> WeightManifest:
        self.version += 1
        self.publisher.submit(self.versions.take(self.version, 0.0))
        self.publisher.wait()
        return self.registered[-1]

    def change(self, share: float = 0.001) -> WeightManifest:
        """Publish after some weights have doubled."""
        with torch.no_grad():
            for parameter in self.loaded.model.parameters():
                few = torch.rand(parameter.shape) < share
                parameter[few] = 2 * parameter[few] + 1e-3
        return self.publish()

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.root / "runs/r1/weights").iterdir())


@pytest.mark.parametrize("weights", ["auto", "full"])
def test_weights_that_did_not_change_keep_their_canary(
    tmp_path: Path, weights: PublishedAs
) -> None:
    run = Run(tmp_path, half(make_model(BROAD, seed=0)), weights)

    def published(rounding: float) -> bytes:
        run.version += 1
        canary = Canary("float32", 9, 4, packed([-1.0 + rounding, -2.0 + rounding]))
        run.publisher.submit(run.versions.take(run.version, 0.0, canary))
        run.publisher.wait()
        found = run.registered[-1].canary
        assert found is not None
        return found.logprobs

    first = published(0.0)
    # The next pass has another number of threads: workers see the same values from vLLM.
    assert published(1e-7) == first
    assert published(2e-7) == first
    run.loaded.model.get_input_embeddings().weight.data[0, 0] += 1
    assert published(3e-7) not in (first, b"")
    run.publisher.close()


def check_equal(found: dict[str, torch.Tensor], loaded: LoadedModel) -> None:
    expected = host_weights(loaded, 0, 0.0).tensors
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].view(torch.int16), tensor.view(torch.int16)), name


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run of a tiny model, whose deltas may be as large as the model."""
    monkeypatch.setattr(delta_files, "SHARE", 10.0)
    run = Run(tmp_path, half(tiny_model()))
    yield run
    run.publisher.close()


def test_steps_of_adamw_are_published_bit_for_bit_in_few_bytes(tmp_path: Path) -> None:
    loaded = half(make_model(BROAD, 0))
    run = Run(tmp_path, loaded)
    optimizers = Optimizers(loaded.model, AdamW(lr=1e-6))
    policy = TokenLogprobs(loaded.model)
    (full,) = run.publish().files
    for step in range(20):
        samples = random_samples(groups=1, per_group=3, seed=step)
        row = packed_row([one.tokens for one in samples], [one.loss_mask for one in samples])
        logprobs, _ = policy(row)
        (logprobs * torch.randn(len(logprobs))).sum().backward()
        optimizers.last_pass()
        optimizers.step()
        manifest = run.publish()
        check_equal(read_version(tmp_path, manifest), loaded)
    run.publisher.close()
    deltas = [one.files[-1].bytes for one in run.registered if one.kind == "delta"]
    assert len(deltas) >= 17
    # The first steps of AdamW move every weight by the learning rate, later steps a fifth of the
    # weights.
    assert sum(deltas) / len(deltas) < 0.05 * full.bytes
    assert deltas[-1] < 0.025 * full.bytes


def test_a_mixture_of_experts_is_named_as_in_its_folder(tiny: Run) -> None:
    run = Run(tiny.root, half(LoadedModel(tiny_mixture().float(), None, torch.float32)))
    run.publish()
    manifest = run.change(share=0.02)
    run.publisher.close()
    assert manifest.kind == "delta"
    with DeltaReader(tiny.root / manifest.files[-1].name) as delta:
        assert any("mlp.experts.3.gate_proj" in name for name in delta.changed)
    check_equal(read_version(tiny.root, manifest), run.loaded)


def test_a_version_with_many_changed_weights_is_published_whole(tiny: Run) -> None:
    tiny.publish()
    assert tiny.change(share=0.1).kind == "full"
    # Against the whole version.
    manifest = tiny.change()
    assert [Path(file.name).name for file in manifest.files] == [
        "v000001-a.safetensors",
        "v000002-a.delta.safetensors",
    ]
    check_equal(read_version(tiny.root, manifest), tiny.loaded)


def test_a_whole_version_is_copied_before_the_device_changes_it(tiny: Run) -> None:
    first = tiny.versions.take(0, 0.0)
    expected = {n: t.clone() for n, t in host_weights(tiny.loaded, 0, 0.0).tensors.items()}
    with torch.no_grad():
        for parameter in tiny.loaded.model.parameters():
            parameter.mul_(2)
    # The next version is taken before a thread has read the first one.
    second = tiny.versions.take(1, 0.0)
    check_same(first.tensors, expected)
    check_same(second.tensors, host_weights(tiny.loaded, 1, 0.0).tensors)


def check_same(tensors: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> None:
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("kind", ["full", "float32", "adapter"])
def test_other_weights_are_always_published_whole(tmp_path: Path, kind: str) -> None:
    loaded = tiny_model() if kind == "float32" else half(tiny_model())
    if kind == "adapter":
        add_adapters(loaded, LoRA(rank=2), 0)
    run = Run(tmp_path, loaded, "full" if kind == "full" else "auto")
    for _ in range(2):
        run.publish()
    run.publisher.close()
    expected = "adapter" if kind == "adapter" else "full"
    assert [manifest.kind for manifest in run.registered] == [expected] * 2
    assert not run.publisher.can_repeat


def test_a_whole_version_follows_deltas_of_18_percent_of_their_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, half(make_model(BROAD, 0)))
    run.publish()
    for _ in range(8):
        run.change(share=0.02)
    monkeypatch.setattr(delta_files, "LONGEST", 1)
    for _ in range(4):
        run.change(share=0.0)
    run.publisher.close()
    lengths = [len(manifest.files) for manifest in run.registered]
    # Deltas of 3.3 % of the anchor each, then by number.
    assert lengths == [1, 2, 3, 4, 5, 6, 1, 2, 3, 1, 2, 1, 2]
    for manifest in run.registered:
        anchor, *deltas = manifest.files
        assert sum(file.bytes for file in deltas) <= 0.18 * anchor.bytes


def test_files_stay_while_a_new_version_or_a_worker_needs_them(tiny: Run) -> None:
    tiny.publish()
    for _ in range(2):
        tiny.change()
    anchor = ["v000000-a.safetensors", "v000001-a.delta.safetensors", "v000002-a.delta.safetensors"]
    assert tiny.files == anchor
    old = WorkerRecord(id="w", pool="p", host="h", pid=1, state="idle")
    old.files = [file.name for file in tiny.registered[1].files]
    tiny.workers.append(old)
    for _ in range(3):
        tiny.change(share=0.1)
    assert tiny.files == [*anchor[:2], *(f"v00000{n}-a.safetensors" for n in (3, 4, 5))]
    tiny.workers.clear()
    tiny.change()
    # The next learner's lineage begins one version below.
    again = Run(tiny.root, tiny.loaded, lineage="b", version=3)
    again.publish()
    again.publisher.close()
    assert again.files == ["v000004-b.safetensors"]


def test_a_new_learner_publishes_an_anchor_of_its_own(tiny: Run) -> None:
    tiny.publish()
    tiny.change()
    again = Run(tiny.root, tiny.loaded, lineage="b", version=0)
    assert again.publish().kind == "full"
    again.publisher.close()


def test_a_version_with_a_damaged_delta_is_published_again_whole(tiny: Run) -> None:
    tiny.publish()
    assert not tiny.publisher.damage()
    for _ in range(2):
        manifest = tiny.change()
    file = manifest.files[1]
    os.truncate(tiny.root / file.name, file.bytes - 1)
    said = f"has {file.bytes - 1} bytes, its manifest says {file.bytes}"
    assert tiny.publisher.damage() == f"v000001-a.delta.safetensors {said}"
    assert tiny.publisher.can_repeat
    tiny.publisher.submit(Again(0.0))
    tiny.publisher.wait()
    assert not tiny.publisher.damage()
    again = tiny.registered[-1]
    assert (again.kind, again.tag) == ("full", manifest.tag)
    check_equal(read_version(tiny.root, again), tiny.loaded)
    # The next delta changes exactly the version that was loaded before.
    after = tiny.change()
    assert (after.kind, after.files[:-1]) == ("delta", again.files)
    check_equal(read_version(tiny.root, after), tiny.loaded)


def test_a_worker_that_cannot_load_a_delta_file_gets_a_whole_version(tiny: Run) -> None:
    tiny.publish()
    tiny.change()
    worker = WorkerRecord(id="w", pool="p", host="h", pid=1, state="unhealthy")
    worker.error = "v000001-a.delta.safetensors has checksum 1, its manifest says 2"
    tiny.workers.append(worker)
    assert tiny.change().kind == "full"
    assert tiny.change().kind == "delta"


def test_the_sizes_of_a_published_version_are_reported(tiny: Run) -> None:
    assert tiny.publisher.pushed is None
    (full,) = tiny.publish().files
    pushed = tiny.publisher.pushed
    assert pushed is not None
    assert (pushed.bytes, pushed.full_bytes, pushed.changed) == (full.bytes, full.bytes, None)
    with torch.no_grad():
        tiny.loaded.model.lm_head.weight[0, :4] += 1
    manifest = tiny.publish()
    pushed = tiny.publisher.pushed
    assert pushed is not None
    weights = sum(p.numel() for p in tiny.loaded.model.parameters())
    assert pushed.metrics() == {
        "push/bytes": manifest.files[1].bytes,
        "push/full_bytes": full.bytes,
        "push/changed": 4 / weights,
    }
