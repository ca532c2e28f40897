"""Files of policy versions: a delta holds what one version changed of another one's weights.

Code here knows files and arrays, by docs/weights.md. It imports neither torch nor the store, since
learner, rollout workers and vLLM's own processes use it.
"""

from services.weights.delta import DeltaReader, DeltaWriter, Patch, Tensor, UnusableDelta
from services.weights.full import UnusableBase, WholeVersion, apply, changes, tensor_checksum
from services.weights.threads import in_threads

__all__ = [
    "DeltaReader",
    "DeltaWriter",
    "Patch",
    "Tensor",
    "UnusableBase",
    "UnusableDelta",
    "WholeVersion",
    "apply",
    "changes",
    "in_threads",
    "tensor_checksum",
]
