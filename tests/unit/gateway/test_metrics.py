"""The metrics of runs for Prometheus."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.contracts.records import RunRecord, RunState
from services.gateway.routes.operation.prometheus import Scrape


def test_components_whose_names_differ_in_one_sign_have_separate_metrics() -> None:
    run = RunRecord(
        id="9f3a", name="a", pool="p", kind="rl", state=RunState.RUNNING, config={}, created=0.0,
        metrics={
            "reward/mean": 0.5,
            "reward/component/a-b": 0.25,
            "reward/component/a_b": 0.75,
            "reward/component/a/b": 1.0,
            "dataset/reward/a-b": 0.5,
            "dataset/reward/a_b": 0.75,
            "train/loss": 2.0,
            "train/loss/a-b": 1.5,
            "train/loss/a_b": 2.5,
            "validation/loss/a-b": 3.0,
        },
    )  # fmt: skip
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape(True, [run], [run], [], []))

    families = list(text_string_to_metric_families(generate_latest(registry).decode()))

    names = [family.name for family in families]
    assert len(names) == len(set(names))
    (components,) = [f for f in families if f.name == "headrace_reward_component"]
    assert {sample.labels["component"]: sample.value for sample in components.samples} == {
        "a-b": 0.25,
        "a_b": 0.75,
        "a/b": 1.0,
    }
    (datasets,) = [f for f in families if f.name == "headrace_dataset_reward"]
    assert {sample.labels["dataset"]: sample.value for sample in datasets.samples} == {
        "a-b": 0.5,
        "a_b": 0.75,
    }
    (losses,) = [f for f in families if f.name == "headrace_dataset_train_loss"]
    assert {sample.labels["dataset"]: sample.value for sample in losses.samples} == {
        "a-b": 1.5,
        "a_b": 2.5,
    }
    (loss,) = [f for f in families if f.name == "headrace_train_loss"]
    assert [sample.value for sample in loss.samples] == [2.0]


def test_a_run_that_waits_its_turn_is_not_seen_to_stand_still() -> None:
    runs = [
        RunRecord(id=state, name=state, pool="p", kind="rl", state=state, config={}, created=0.0)
        for state in RunState
        if not state.final
    ]
    families = Scrape(True, runs, runs, [], []).collect()
    (steps,) = [family for family in families if family.name == "headrace_run_step"]
    assert {sample.labels["run"] for sample in steps.samples} == {
        "starting",
        "running",
        "paused",
        "cancelling",
    }
