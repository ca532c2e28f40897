"""The weight manifest, which the learner registers for each policy version.

A version exists when its manifest does, never before its files are durable. Versions form a tree:
each start of a learner has a `lineage` of its own, so that every process recognises versions that a
dead learner published beyond the checkpoint at which its successor starts.
"""

from typing import Literal

import msgspec

from services.contracts.schema import require_schema

SCHEMA = 2

MODEL_FILES = "files.json"
"""In a run's model folder: a list of WeightFile, relative to it. Hosts without the data volume
fetch these files."""
ADAPTER = "adapter"
"""In the model folder of a LoRA run, together with the base weights: a folder in peft's layout with
an adapter that does nothing."""
DELTA = ".delta.safetensors"
"""How the names of deltas end."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


SMALLEST_PART = 4 << 20
MOST_PARTS = 512
"""The most parts of one file: each part costs its manifest 19 bytes."""


class Canary(msgspec.Struct, frozen=True):
    """Log-probabilities that prove which weights are served (`services.contracts.canary`). They are
    in nats, at temperature 1, of each token of each sequence except its first."""

    dtype: str
    """The type of the learner's passes, like `bfloat16`."""
    vocabulary: int
    longest: int
    """Tokens that a sequence may have."""
    logprobs: bytes
    """float32, little-endian, one sequence after the other."""
    without_adapter: bytes = b""
    """For a LoRA run: the same log-probabilities from the frozen weights alone."""


class WeightFile(msgspec.Struct, frozen=True):
    """One file relative to the data volume, with its size and checksum."""

    name: str
    bytes: int
    xxh3: str
    parts: list[str] = []
    """xxh3 of each part of `part_bytes(bytes)` bytes, in their order. Hosts pass parts on to each
    other. Without them the file is checked as a whole, and comes from the gateway alone."""


def part_bytes(size: int) -> int:
    """Bytes of each part of a file, the last one excepted, which may be shorter: a power of two, at
    least SMALLEST_PART, that gives at most MOST_PARTS parts."""
    part = SMALLEST_PART
    while part * MOST_PARTS < size:
        part *= 2
    return part


class WeightManifest(msgspec.Struct, frozen=True):
    """One published policy version."""

    run: str
    version: int
    lineage: str
    kind: Literal["full", "delta", "adapter"]
    """`adapter`: a LoRA adapter for the weights in the folder `model`. See docs/weights.md."""
    files: list[WeightFile]
    """One; of a delta the whole file of an earlier version of this lineage, then a delta for each
    version from there to this one."""
    tensors: int
    """The number of tensors of the whole version."""
    model: str
    """Folder of config and tokenizer on the data volume; with weights only for an adapter."""
    created: float = 0.0
    """Unix seconds when the optimizer step that made it ended."""
    canary: Canary | None = None
    """None: the model takes no sequence that is long enough."""
    schema: int = SCHEMA

    @property
    def tag(self) -> str:
        """The version string that vLLM reports for every token."""
        return version_tag(self.lineage, self.version)


def encode_manifest(manifest: WeightManifest) -> bytes:
    """A manifest as JSON."""
    return msgspec.json.encode(manifest)


def decode_manifest(text: bytes) -> WeightManifest:
    """Parse a manifest from its JSON. Raises schema.SchemaMismatch for another schema version, and
    ValueError for any other invalid manifest."""
    try:
        require_schema(
            "weight manifest", msgspec.json.decode(text, type=_SchemaOnly).schema, SCHEMA
        )
        manifest = msgspec.json.decode(text, type=WeightManifest)
    except msgspec.MsgspecError as error:
        raise ValueError(f"weight manifest is damaged: {error}") from error
    count = len(manifest.files)
    right = 1 < count <= manifest.version + 1 if manifest.kind == "delta" else count == 1
    if not right:
        raise ValueError(
            f"weight manifest is damaged: version {manifest.tag} of kind {manifest.kind} has "
            f"{count} files"
        )
    return manifest


class _SchemaOnly(msgspec.Struct):
    schema: int


def version_tag(lineage: str, version: int) -> str:
    """`9f3a1c:7`: a version as text."""
    return f"{lineage}:{version}"


def parse_version_tag(tag: str) -> tuple[str, int]:
    """The inverse of `version_tag`. Raises ValueError for anything else."""
    lineage, separator, version = tag.rpartition(":")
    if not separator or not lineage or not version.isdigit():
        raise ValueError(f"{tag!r} is not a version tag like '9f3a1c:7'")
    return lineage, int(version)
