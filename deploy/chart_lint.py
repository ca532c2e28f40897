"""Lints the Helm chart and checks what it renders against Kubernetes' own schemas: `make lint`.

Renders the chart's defaults and each file of values in `k8s/ci`. Exit code 1 with a line for
each thing that is wrong. Needs neither the helm binary nor a cluster.
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
KUBERNETES = "1.33"
WARNING = 2
"""Severity of what helm lint only warns of."""
# Kinds of KEDA. Their schemas come with KEDA instead of Kubernetes.
FOREIGN = frozenset({"ScaledObject", "TriggerAuthentication"})


def values_files() -> list[Path | None]:
    """The values files to render with; None stands for the defaults."""
    return [None, *sorted((CHART / "ci").glob("*.yaml"))]


def rendered(values: Path | None) -> list[dict[str, Any]]:
    """The manifests that come out of the chart. Raises helm_python's errors."""
    given = yaml.safe_load(values.read_text()) if values else {}
    files = helm_python.Chart.load(CHART).render(given, name="headrace", namespace="rl")
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    return [document for document in documents if document is not None]


def problems() -> Iterator[str]:
    """Each thing that is wrong, with its place."""
    for values in values_files():
        name = values.name if values else "defaults"
        given = yaml.safe_load(values.read_text()) if values else {}
        report = helm_python.lint(CHART, given, strict=True, with_subcharts=True)
        for message in report["messages"]:
            if message["severity"] >= WARNING:
                yield f"{name}: {message['path']}: {message['error']}"
        for manifest in rendered(values):
            kind, what = manifest.get("kind"), manifest.get("metadata", {}).get("name")
            if kind in FOREIGN:
                continue
            try:
                kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
            except (ValidationError, SchemaNotFoundError) as error:
                yield f"{name}: {kind} {what}: {error}"


if __name__ == "__main__":
    wrong = list(problems())
    print("\n".join(wrong) or f"the chart renders, and fits Kubernetes {KUBERNETES}")
    sys.exit(bool(wrong))
