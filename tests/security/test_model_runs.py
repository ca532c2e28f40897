"""Hostile models in front of a real learner: each run fails in its first attempt with the reason,
no code of a model runs, and the next run trains."""

import asyncio
import json
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reward.models.scorer import LoadError, load
from reward.models.wire import ModelOptions
from rollout.run_events import RunEvents
from rollout.settings import RolloutSettings
from rollout.vllm.model_files import load_tokenizer
from rollout.worker_supervisor import WorkerSupervisor
from services.contracts.preview import AskedRow, PreviewJob
from services.contracts.rows import template_limits as limits
from services.contracts.rows.rendering import chat_text
from services.contracts.rows.template_limits import limited
from services.contracts.weights import WeightManifest
from services.gateway.previews import endless
from services.models import UnusableFolder
from tests.integration.learner.conftest import placed, stored
from tests.integration.learner.test_runs import SFT, add_sums, ended, rl, submit
from tests.security.hostile_models import (
    ADAPTERS,
    MODELS,
    breaking_at_the_first_text,
    config,
    file,
    good_adapter,
    good_model,
    renamed,
    sparse,
)

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LEARNERS: dict[str, tuple[Callable[[Path], object], str]] = {
    # The gateway refuses these, too, if the folder is on its host.
    "linked": MODELS["files: linked template"],
    "pickle": MODELS["files: pickle"],
    "nested": MODELS["config: nested"],
    # A config.json that contradicts the weights.
    "heads": (config(num_attention_heads=3, head_dim=None), "correct config.json"),
    "width": (config(hidden_size=16), "correct config.json"),
    "layers": (config(num_hidden_layers=3), "have no layer 2"),
    "sparse": (sparse, "config.json says vocab_size"),
    "vocabulary": (config(vocab_size=21), "config.json says vocab_size 21"),
    # Only a library can find these faults.
    "kind": (config(model_type="bert", architectures=["BertModel"]), "model"),
    "unknown": (config(model_type="nothing"), "does not load"),
    "tokenizer": (file("tokenizer.json", {"model": {"type": "BPE"}}), "does not load"),
    "panic": (breaking_at_the_first_text, "broke down"),
    "no tokenizer": (renamed("tokenizer.json", "x.json"), "model"),
    "template": (file("chat_template.jinja", ENDLESS.encode()), "it runs for more than 2 s"),
}


def run_of(path: Path, **model: Any) -> dict[str, Any]:
    """A supervised run of two steps that starts from the model at `path`."""
    data = {"dataset": "sums", "template": "{prompt}="}
    training = {"max_steps": 2, "rows_per_step": 8}
    section = {"source": "pretrained", "path": str(path), **model}
    return SFT | {"model": section, "data": data, "training": training}


async def test_a_hostile_model_fails_its_run_at_once_and_the_next_run_trains(
    tmp_path: Path,
) -> None:
    cases = dict(LEARNERS)
    with placed(tmp_path) as place:
        async with stored(place) as store:
            await add_sums(store, place.data)
            for name, (change, _) in cases.items():
                (tmp_path / name).mkdir()
                change(model := good_model(tmp_path / name / "base"))
                await submit(store, name.replace(" ", "-"), run_of(model))
            (tmp_path / "adapter").mkdir()
            base = good_model(tmp_path / "base")
            adapter = good_adapter(tmp_path / "adapter/adapter", base)
            ADAPTERS["pickle"][0](adapter)
            cases["adapter"] = ADAPTERS["pickle"]
            await submit(store, "adapter", run_of(adapter))
            cases["code"] = (print, "HEADRACE_TRUST_REMOTE_CODE=1")
            await submit(store, "code", run_of(base, trust_remote_code=True))
            large = SFT["model"] | {"hidden_size": 1 << 16, "layers": 1000}
            cases["large"] = (print, "this machine has")
            await submit(store, "large", SFT | {"model": large})
            cases["stuck"] = (print, "could not be interrupted, so the kernel ended the process")
            (note := place.data / "runs/stuck/template-0.txt").parent.mkdir(parents=True)
            note.write_text("its template has ended a rank before")
            await submit(store, "stuck", run_of(base))
            # Both files are harmless, since their values are not used.
            file("generation_config.json", {"max_length": "x", "temperature": -1})(base)
            regex = good_adapter(tmp_path / "regex", base, target_modules="(.*.*)*_proj")
            await submit(store, "good", run_of(regex))
            learner = place.learner()
            assert (await ended(store, "good")).state == "succeeded"
            others = {}
            for name, (_, reason) in cases.items():
                run = name.replace(" ", "-")
                record = await ended(store, run)
                if record.state != "failed" or reason not in record.reason:
                    others[name] = record.state, record.reason
                counts = json.loads((place.data / f"runs/{run}/crashes-0.json").read_text())
                assert counts["crashes"] == counts["deaths"] == 0
            assert not others
            assert learner.poll() is None
    assert not list(tmp_path.rglob("unpickled"))


class Template:
    """A tokenizer for tests of its chat template."""

    def __init__(self, template: str) -> None:
        self.chat_template = template

    def __call__(self, text: str, **options: Any) -> Any:
        raise NotImplementedError

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        texts, _ = render_jinja_template([conversation], chat_template=self.chat_template)
        return texts[0]


DOUBLED = "{% set n = namespace(x=START) %}{% for i in range(60) %}{% set n.x = STEP %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (ENDLESS, "runs for more than 2 s"),
        (DOUBLED.replace("START", "7").replace("STEP", "n.x * n.x"), "runs for more than 2 s"),
        (DOUBLED.replace("START", "'ab'").replace("STEP", "n.x ~ n.x"), "MiB of memory"),
        ("{{ 'a' * 10**11 }}", "MiB of memory"),
        ("{{ ' ' * 2**24 }}", "16,777,216 characters"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "recursion"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
    ],
)
def test_a_chat_template_has_little_time_and_memory(template: str, message: str) -> None:
    with pytest.raises(ValueError, match="the chat template") as refused:
        chat_text([{"role": "user", "content": "1+1"}], Template(template))
    assert message in str(refused.value)


COMPARED = "{% set a, b = [1, 1], [1, 1] %}" + "{% set a, b = [a, a], [b, b] %}" * 60
HASHED = "{% set a = (1, 1) %}" + "{% set a = (a, a) %}" * 60


@pytest.mark.parametrize("template", [COMPARED + "{{ a == b }}", HASHED + "{{ {a: 1} }}"])
def test_the_kernel_ends_a_process_whose_template_nothing_interrupts_and_its_successor_knows(
    template: str, tmp_path: Path
) -> None:
    note = tmp_path / "notes/run.txt"

    def render() -> None:
        limits.HARD_SECONDS = 1
        with limits.noted(note):
            chat_text([{"role": "user", "content": "1+1"}], Template(template))

    limits.check_noted(note)
    # It has what the tests have imported.
    child = multiprocessing.get_context("fork").Process(target=render)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGXCPU
    with pytest.raises(ValueError, match="could not be interrupted") as said:
        limits.check_noted(note)
    assert str(note) in str(said.value)
    with limits.noted(other := tmp_path / "notes/other.txt"):
        assert other.exists()
    assert not other.exists()


def test_a_submission_with_a_template_that_the_kernel_had_to_end_is_refused() -> None:
    job = PreviewJob(config={}, folder="", rows=[AskedRow(index=3, prompt="1+1")], characters=9)
    (row,) = endless(job).rows
    assert (row.index, row.pieces) == (3, [])
    assert "cannot be interrupted" in str(row.problem)


async def test_a_worker_fails_a_run_whose_template_ended_its_predecessor(tmp_path: Path) -> None:
    settings = RolloutSettings.model_validate({"worker": "w", "data": tmp_path})
    (note := tmp_path / "cache/templates/r1.txt").parent.mkdir(parents=True)
    note.write_text("Fatal Python error")
    with placed(tmp_path) as place:
        async with stored(place) as store:
            await submit(store, "r1", rl(model={"path": "org/name"}))
            run, stop = await store.runs.get("r1"), asyncio.Event()
            assert run is not None
            worker, events = WorkerSupervisor(settings, store), RunEvents("r1", "w", store)
            manifest = WeightManifest("r1", 0, "aaa", "full", [], 0, "model")
            await worker._attend(run, manifest, events, stop)
            run = await store.runs.get("r1")
    assert run is not None
    assert run.state == "failed"
    assert "could not be interrupted" in run.reason


def test_limits_end_with_the_rendering() -> None:
    with limited():
        pass
    assert len(b"x" * (600 << 20)) == 600 << 20


async def test_a_worker_fails_a_run_with_a_hostile_folder_before_vllm_reads_it(
    tmp_path: Path,
) -> None:
    settings = RolloutSettings.model_validate({"worker": "w", "data": tmp_path})
    with placed(tmp_path) as place:
        async with stored(place) as store:
            await submit(store, "r1", rl(model={"path": "org/name"}))
            folder = good_model(tmp_path / "model")
            MODELS["tokenizer: nested"][0](folder)
            (folder / "files.json").write_text("[]")
            manifest = WeightManifest("r1", 0, "aaa", "full", [], 0, "model")
            run, stop = await store.runs.get("r1"), asyncio.Event()
            assert run is not None
            worker, events = WorkerSupervisor(settings, store), RunEvents("r1", "w", store)
            await worker._attend(run, manifest, events, stop)
            run = await store.runs.get("r1")
    assert run is not None
    assert run.state == "failed"
    assert "tokenizer.json is no JSON object" in run.reason


def test_a_worker_names_a_tokenizer_that_does_not_load(tmp_path: Path) -> None:
    folder = good_model(tmp_path / "model")
    LEARNERS["tokenizer"][0](folder)
    with pytest.raises(UnusableFolder, match=r"tokenizer in .*/model does not load"):
        load_tokenizer(folder)


@pytest.mark.parametrize("case", ["files: linked template", "files: pickle", "weights: huge shape"])
def test_a_reward_model_is_refused_like_a_policy(tmp_path: Path, case: str) -> None:
    change, message = MODELS[case]
    change(folder := good_model(tmp_path / "model"))
    with pytest.raises(LoadError) as refused:
        load(ModelOptions(str(folder), device="cpu"))
    assert message in str(refused.value)
    assert not (tmp_path / "unpickled").exists()


def test_an_adapter_is_refused_as_a_reward_model(tmp_path: Path) -> None:
    adapter = good_adapter(tmp_path / "adapter", good_model(tmp_path / "base"))
    with pytest.raises(LoadError, match="is an adapter: merge it into its base"):
        load(ModelOptions(str(adapter), device="cpu"))
