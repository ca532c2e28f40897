"""Files of policy versions: a delta has the changes of one version to another version's weights.

This code knows files and arrays (docs/weights.md). It imports neither torch nor the store, because
learner, rollout workers and vLLM's processes use it.
"""

from services.weights.delta_format import DeltaReader, DeltaWriter, Patch, Tensor, UnusableDelta
from services.weights.full import UnusableBase, WholeVersion, apply, changes, tensor_checksum
from services.weights.threads import in_threads
