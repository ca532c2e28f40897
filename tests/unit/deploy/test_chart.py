"""The Helm chart: what it renders is safe by default, and is what the processes need."""

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import redis
import yaml
from torch.distributed.run import get_args_parser

from deploy.chart_lint import (
    CHART,
    golden,
    golden_name,
    pod_template,
    problems,
    rendered,
    values_files,
)
from headrace.death_signal import die_with
from services.launch.redis import bundled_server
from services.store import Store
from tests.ports import own_ports

EVERYTHING = CHART / "ci" / "everything.yaml"
WORKLOADS = ("Deployment", "StatefulSet", "Job", "JobSet", "TrainingRuntime")
GOLDEN = Path(__file__).parent / "golden"

Manifest = dict[str, Any]


def of_kind(kind: str, values: Path | None = None) -> dict[str, Manifest]:
    """Manifests of a kind by their component, or their name."""
    return {
        m["metadata"]["name"].removeprefix("headrace-"): m
        for m in rendered(values)
        if m["kind"] == kind
    }


def pods(values: Path | None) -> Iterator[tuple[str, Manifest]]:
    for manifest in rendered(values):
        if manifest["kind"] in WORKLOADS:
            template = pod_template(manifest) or manifest["spec"]["template"]
            yield manifest["metadata"]["name"], template["spec"]


def environment(container: Manifest) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def learner(values: Path | None) -> Manifest:
    """The pod of the learner."""
    (pod,) = [pod for name, pod in pods(values) if "-learner-" in name]
    return pod


def test_the_chart_lints_and_fits_kubernetes_schemas() -> None:
    assert list(problems()) == []


@pytest.mark.parametrize("values", values_files(), ids=golden_name)
def test_the_chart_renders_as_its_golden_files_say(values: Path | None) -> None:
    assert golden(values) == (GOLDEN / golden_name(values)).read_text(), (
        "if the change is meant: .venv/bin/python -m deploy.chart_lint tests/unit/deploy/golden"
    )


def test_one_node_has_a_supervisor_and_several_have_torchrun() -> None:
    (alone,) = learner(None)["containers"]
    assert alone["args"] == ["python", "-m", "learner"]
    assert environment(alone)["HEADRACE_RANKS"] == "gpu"

    pod, (name,) = learner(EVERYTHING), of_kind("Job", EVERYTHING)
    (container,) = pod["containers"]
    options = dict(arg.split("=") for arg in container["args"] if "=" in arg)
    service = of_kind("Service", EVERYTHING)[pod["subdomain"].removeprefix("headrace-")]
    assert options == {
        "--nnodes": "4",
        "--nproc-per-node": "8",
        "--node-rank": "$(JOB_COMPLETION_INDEX)",
        "--master-addr": f"headrace-{name}-0.{service['metadata']['name']}",
        "--master-port": "29500",
        "--shutdown-timeout": "585",
    }
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    # torchrun tells the ranks how many there are.
    assert "HEADRACE_RANKS" not in environment(container)


def test_torchrun_takes_the_charts_options_and_those_of_kubeflow_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What the controller of a TrainJob sets.
    monkeypatch.setenv("PET_NODE_RANK", "1")
    monkeypatch.setenv("PET_MASTER_ADDR", "x-node-0-0.x")
    monkeypatch.setenv("PET_MASTER_PORT", "29400")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "auto")
    for values in ("everything", "jobset", "trainjob"):
        (container,) = learner(CHART / "ci" / f"{values}.yaml")["containers"]
        command, *arguments = container["args"]
        assert command == "torchrun"
        given = [argument.replace("$(JOB_COMPLETION_INDEX)", "1") for argument in arguments]
        parsed = get_args_parser().parse_args(given)
        assert (parsed.module, parsed.training_script) == (True, "learner")
        assert (parsed.node_rank, parsed.rdzv_backend, parsed.shutdown_timeout) == (
            1,
            "static",
            585,
        )
        assert (parsed.nnodes, parsed.nproc_per_node) == {
            "everything": ("4", "8"),
            "jobset": ("2", "4"),
            "trainjob": ("2", "4"),
        }[values]
        assert parsed.master_addr.count("-0.") == 1 or parsed.master_addr == "x-node-0-0.x"


def test_a_learner_in_a_queue_is_a_jobset_or_a_trainjob() -> None:
    jobset = CHART / "ci" / "jobset.yaml"
    ((name, made),) = of_kind("JobSet", jobset).items()
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    (container,) = learner(jobset)["containers"]
    assert f"--master-addr=headrace-{name}-node-0-0.headrace-learner" in container["args"]
    assert made["spec"]["network"]["subdomain"] == "headrace-learner"

    trainjob = CHART / "ci" / "trainjob.yaml"
    ((name, made),) = of_kind("TrainJob", trainjob).items()
    assert made["spec"]["runtimeRef"]["name"] == f"headrace-{name}"
    runtime = of_kind("TrainingRuntime", trainjob)[name]
    assert runtime["spec"]["mlPolicy"] == {"numNodes": 2, "torch": {}}
    (container,) = learner(trainjob)["containers"]
    # The controller gives this container the address of the first pod.
    assert container["name"] == "node"
    assert not any("master" in arg or "rank" in arg for arg in container["args"])


def test_a_pod_of_a_jobset_has_a_name_that_dns_takes(tmp_path: Path) -> None:
    files = helm_python.Chart.load(CHART).render(
        {"learner": {"kind": "JobSet", "nodes": 1000}}, name="h" * 50, namespace="rl"
    )
    documents = [yaml.safe_load(text) for path, text in files.items() if "learner" in path]
    assert len(f"{documents[0]['metadata']['name']}-node-0-999") <= 63


def test_another_kind_of_learner_is_refused(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("learner: {kind: Deployment}\n")
    with pytest.raises(helm_python.HelmRenderError, match="it may be Job, JobSet or TrainJob"):
        rendered(values)


def test_workers_of_each_kind_are_reached_by_the_others_and_have_their_class() -> None:
    values = CHART / "four-nodes.yaml"
    workers = of_kind("Deployment", values)
    assert workers["rollout"]["spec"]["replicas"] == 8
    assert workers["spot"]["spec"]["replicas"] == 4
    spot = workers["spot"]["spec"]["template"]["spec"]
    (container,) = spot["containers"]
    assert environment(container)["HEADRACE_WORKER_CLASS"] == "spot"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert (spot["terminationGracePeriodSeconds"], len(spot["tolerations"])) == (25, 2)
    for component in ("redis", "reward", "rollout", "spot"):
        rules = of_kind("NetworkPolicy", values)[component]["spec"]["ingress"]
        allowed = [
            peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
            for peer in rules[0]["from"]
        ]
        assert {"rollout", "spot"} <= set(allowed), component
    assert "spot" in of_kind("PodDisruptionBudget", values)


@pytest.mark.parametrize(
    ("state", "ready"), [("generating", True), ("idle", True), ("starting", False)]
)
def test_a_worker_is_ready_once_its_vllm_has_loaded_the_model(
    tmp_path: Path, state: str, ready: bool
) -> None:
    (container,) = of_kind("Deployment")["rollout"]["spec"]["template"]["spec"]["containers"]

    def passes(probe: str) -> bool:
        command = container[probe]["exec"]["command"]
        alive = {**os.environ, "HEADRACE_ALIVE_FILE": str(tmp_path / "alive")}
        return subprocess.run(command, env=alive, stderr=subprocess.DEVNULL).returncode == 0

    assert not passes("startupProbe")
    (tmp_path / "alive").write_text(f"{state}\n")
    assert passes("startupProbe")
    assert passes("livenessProbe")
    assert passes("readinessProbe") is ready


@pytest.mark.parametrize("values", values_files(), ids=lambda p: p.stem if p else "defaults")
def test_no_pod_is_root_or_can_write_to_its_image(values: Path | None) -> None:
    for name, pod in pods(values):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] > 0, name
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, name


def test_only_the_gateway_is_reached_from_elsewhere() -> None:
    policies = {name: p["spec"] for name, p in of_kind("NetworkPolicy").items()}
    everyone = policies.pop("nobody")
    assert everyone["ingress"] == []
    assert "app.kubernetes.io/component" not in everyone["podSelector"]["matchLabels"]
    open_to_all = [n for n, p in policies.items() if any("from" not in i for i in p["ingress"])]
    assert open_to_all == ["gateway"]
    assert policies.keys() == {"gateway", "reward", "rollout", "learner", "redis"}

    components = {
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in policies["redis"]["ingress"]
        for peer in rule["from"]
    }
    assert components == {"gateway", "rollout", "learner"}
    services = of_kind("Service")
    assert {s["spec"].get("type", "ClusterIP") for s in services.values()} == {"ClusterIP"}


def test_workers_that_only_serve_are_workers_with_one_more_variable() -> None:
    deployments = of_kind("Deployment", EVERYTHING)
    (serving,), (rollout,) = (
        deployments[part]["spec"]["template"]["spec"]["containers"]
        for part in ("serving", "rollout")
    )
    only_here = {"name": "HEADRACE_SERVING_ONLY", "value": "true"}
    assert [one for one in serving["env"] if one not in rollout["env"]] == [only_here]
    assert serving["image"] == rollout["image"]
    assert deployments["serving"]["spec"]["replicas"] == 1
    assert "serving" in of_kind("NetworkPolicy", EVERYTHING)
    assert "serving" not in of_kind("Deployment")


def test_the_reward_service_has_neither_key_nor_redis() -> None:
    for _, pod in ((n, p) for n, p in pods(EVERYTHING) if n.endswith("-reward")):
        for container in pod["containers"]:
            assert "HEADRACE_REDIS_URL" not in environment(container)
            assert "HEADRACE_API_KEY" not in environment(container)


def test_every_component_has_a_budget_for_disruptions() -> None:
    budgets = of_kind("PodDisruptionBudget")
    assert budgets.keys() == {"gateway", "reward", "rollout", "learner", "redis"}
    # The Job has no scale: only a number of pods that stay can be asked for.
    assert of_kind("PodDisruptionBudget", EVERYTHING)["learner"]["spec"]["minAvailable"] == 4


def test_secrets_are_made_once_or_taken_from_yours() -> None:
    (made,) = of_kind("Secret").values()
    assert made["data"].keys() == {"api-key", "reward-key", "redis-password"}
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert of_kind("Secret", EVERYTHING) == {}
    for name, pod in pods(EVERYTHING):
        for container in pod["containers"]:
            key = environment(container).get("HEADRACE_API_KEY")
            if "reward" not in name:
                assert key == {"secretKeyRef": {"name": "mine", "key": "api-key"}}, name


def test_pods_request_gpus_or_run_the_cpu_images() -> None:
    (rollout,) = of_kind("Deployment", EVERYTHING)["rollout"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert rollout["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert rollout["image"] == "registry.example/team/headrace-rollout:1.2.3"
    (cpu,) = of_kind("Deployment", CHART / "ci" / "cpu.yaml")["rollout"]["spec"]["template"][
        "spec"
    ]["containers"]
    assert "nvidia.com/gpu" not in cpu["resources"]["limits"]
    assert cpu["image"].endswith("-cpu")


def test_a_reward_service_that_loads_models_has_torch_and_gpus() -> None:
    def reward(values: Path | None) -> Manifest:
        pod = of_kind("Deployment", values)["reward"]["spec"]["template"]["spec"]
        found: Manifest = pod["containers"][0]
        return found

    loading = reward(EVERYTHING)
    assert loading["image"] == "registry.example/team/headrace-reward-models:1.2.3"
    assert loading["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert environment(loading)["HEADRACE_REWARD_GPUS"] == "0,1"
    assert loading["envFrom"] == [{"secretRef": {"name": "endpoint-keys"}}]
    assert reward(None)["image"].startswith("headrace-reward:")
    assert "nvidia.com/gpu" not in reward(None)["resources"]["limits"]


def test_a_large_number_of_a_values_file_reaches_its_process_in_digits(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    given = {
        "HEADRACE_UPLOAD_LIMIT": 1 << 40,
        "HEADRACE_A": 3,
        "HEADRACE_B": 0.5,
        "HEADRACE_C": True,
    }
    values.write_text(yaml.safe_dump({"gateway": {"env": given}}))
    (container,) = of_kind("Deployment", values)["gateway"]["spec"]["template"]["spec"][
        "containers"
    ]
    found = {name: environment(container)[name] for name in given}
    assert list(found.values()) == ["1099511627776", "3", "0.5", "true"]


def test_the_autoscaler_follows_groups_wanted() -> None:
    scaled = of_kind("ScaledObject", EVERYTHING)["rollout"]["spec"]
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["url"].endswith(":8000/v1/load?pool=big")
    assert trigger["metadata"]["valueLocation"] == "groups_wanted"
    assert "replicas" not in of_kind("Deployment", EVERYTHING)["rollout"]["spec"]


def test_an_upgrade_makes_another_learner_job() -> None:
    (defaults,) = of_kind("Job")
    (others,) = of_kind("Job", EVERYTHING)
    assert defaults != others
    assert [*of_kind("Job")] == [defaults]


@pytest.fixture
def in_chart(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A real Redis, started as the chart starts it: its URL, and its password."""
    (container,) = of_kind("StatefulSet")["redis"]["spec"]["template"]["spec"]["containers"]
    password, (port,) = secrets.token_hex(16), own_ports("127.0.0.1", 1)
    (script,) = container["args"]
    script = script.replace("dir /data", f"dir {tmp_path}\nport {port}")
    (tmp_path / "redis-server").symlink_to(bundled_server())
    server = subprocess.Popen(
        [*container["command"], script],
        stdout=subprocess.DEVNULL,
        env={"PATH": f"{tmp_path}:{os.defpath}", "REDIS_PASSWORD": password},
        preexec_fn=die_with(os.getpid()),
    )
    yield f"redis://:{password}@127.0.0.1:{port}/0", password
    server.kill()
    server.wait()


async def test_the_charts_redis_is_durable_and_refuses_admin_commands(
    in_chart: tuple[str, str],
) -> None:
    url, password = in_chart
    patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200)
    with redis.Redis.from_url(url, retry=patient) as client:
        client.ping()
        for command in ("CONFIG SET dir /tmp", "MODULE LIST", "DEBUG SLEEP 0", "ACL LIST"):
            # Redis 7 and Valkey also switch off MODULE and DEBUG themselves.
            with pytest.raises(redis.exceptions.ResponseError, match=r"permission|not allowed"):
                client.execute_command(*command.split())
    with (
        redis.Redis.from_url(url.replace(f":{password}@", "")) as stranger,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        stranger.ping()
    store = Store.from_url(url)
    await store.check_durability()
    await store.close()


def test_an_external_redis_needs_an_existing_secret(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("redis: {enabled: false}\nexternalRedis: {url: 'redis://redis.example'}\n")
    with pytest.raises(helm_python.HelmRenderError, match=r"global\.existingSecret is needed"):
        rendered(values)


def test_the_reward_service_has_a_process_for_each_requested_cpu(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("reward: {code: {enabled: true}}\n")
    asked_for = {"resourceFieldRef": {"resource": "requests.cpu"}}
    for container in of_kind("Deployment", values)["reward"]["spec"]["template"]["spec"][
        "containers"
    ]:
        assert environment(container)["HEADRACE_WORKERS"] == asked_for
    # A value that the user sets appears once.
    (service, _) = of_kind("Deployment", EVERYTHING)["reward"]["spec"]["template"]["spec"][
        "containers"
    ]
    said = [one for one in service["env"] if one["name"] == "HEADRACE_WORKERS"]
    assert said == [{"name": "HEADRACE_WORKERS", "value": "8"}]
