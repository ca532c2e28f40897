"""Lints the Helm chart and checks what it renders against Kubernetes' own schemas: `make lint`.

Renders the chart's defaults and each file of values beside it and in `k8s/ci`. Exit code 1 with a
line for each thing that is wrong. Needs neither the helm binary nor a cluster.

`python -m deploy.chart_lint FOLDER` writes what the chart renders into FOLDER instead, a file for
each file of values: the golden files of `tests/unit/deploy`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml
from kubernetes_validate import SchemaNotFoundError, ValidationError

CHART = Path(__file__).parent / "k8s"
KUBERNETES = ("1.30", "1.33", "1.37")
"""The oldest version that the chart takes, a version between, and the newest that has a schema."""
WARNING = 2
"""Severity of what helm lint only warns of."""
FOREIGN = frozenset(
    {"ScaledObject", "TriggerAuthentication", "JobSet", "TrainJob", "TrainingRuntime"}
)
"""Kinds of KEDA, JobSet and Kubeflow Trainer. Their schemas come with their controllers."""


def values_files() -> list[Path | None]:
    """The values files to render with; None stands for the defaults."""
    parts = {CHART / "Chart.yaml", CHART / "values.yaml"}
    beside = sorted({*CHART.glob("*.yaml")} - parts)
    return [None, *beside, *sorted((CHART / "ci").glob("*.yaml"))]


def pod_template(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Return the pod template of a foreign kind that starts pods."""
    spec = manifest["spec"]
    jobs = {"JobSet": spec, "TrainingRuntime": spec.get("template", {}).get("spec", {})}
    jobs_of = jobs.get(manifest["kind"])
    return None if jobs_of is None else jobs_of["replicatedJobs"][0]["template"]["spec"]["template"]


def rendered(values: Path | None) -> list[dict[str, Any]]:
    """The manifests that come out of the chart. Raises helm_python's errors."""
    given = yaml.safe_load(values.read_text()) if values else {}
    files = helm_python.Chart.load(CHART).render(given, name="headrace", namespace="rl")
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    return [document for document in documents if document is not None]


def problems() -> Iterator[str]:
    """Each thing that is wrong, with its place."""
    checked: list[dict[str, Any]] = []
    for values in values_files():
        name = values.name if values else "defaults"
        given = yaml.safe_load(values.read_text()) if values else {}
        report = helm_python.lint(CHART, given, strict=True, with_subcharts=True)
        for message in report["messages"]:
            if message["severity"] >= WARNING:
                yield f"{name}: {message['path']}: {message['error']}"
        for manifest in rendered(values):
            if manifest in checked:
                continue
            checked.append(manifest)
            kind, what = manifest.get("kind"), manifest.get("metadata", {}).get("name")
            if kind in FOREIGN:
                template = pod_template(manifest)
                if template is None:
                    continue
                manifest = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
            for version in KUBERNETES:
                try:
                    kubernetes_validate.validate(manifest, version, strict=True)
                except (ValidationError, SchemaNotFoundError) as error:
                    yield f"{name}: {kind} {what}, Kubernetes {version}: {error}"


def golden(values: Path | None) -> str:
    """Return what the chart renders, as text; with a values file, the manifests that the defaults
    do not have. Secrets that the chart makes are replaced."""
    manifests, defaults = rendered(values), rendered(None) if values else []
    for manifest in [*manifests, *defaults]:
        if manifest["kind"] == "Secret":
            manifest["data"] = dict.fromkeys(manifest["data"], "made at the first install")
    manifests = [manifest for manifest in manifests if manifest not in defaults]
    return yaml.safe_dump_all(manifests, sort_keys=False, width=100)


def golden_name(values: Path | None) -> str:
    return values.name if values else "defaults.yaml"


def write_golden(folder: Path) -> None:
    """Write all golden files, and remove those that no values file has."""
    names = {golden_name(values): golden(values) for values in values_files()}
    for path in folder.glob("*.yaml"):
        if path.name not in names:
            path.unlink()
    for name, text in names.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    if folder := sys.argv[1:]:
        write_golden(Path(folder[0]))
        sys.exit()
    wrong = list(problems())
    print("\n".join(wrong) or f"the chart renders, and fits Kubernetes {', '.join(KUBERNETES)}")
    sys.exit(bool(wrong))
