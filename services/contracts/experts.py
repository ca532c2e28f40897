"""How many experts a model has, by its config.

Imports nothing, since benchmarks of the learner use it with torch and transformers alone.
"""

from collections.abc import Mapping
from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names that configs have for the number of experts in a layer."""


def expert_count(config: Any) -> int:
    """Return the number of experts in each layer, or 0 for a dense model. `config` is a model's
    config.json or its transformers object. If it names no experts, its `text_config` is read."""
    fields = config if isinstance(config, Mapping) else vars(config)
    counts = (fields.get(name) for name in EXPERTS)
    experts = next((count for count in counts if isinstance(count, int) and count > 1), 0)
    inner = fields.get("text_config")
    return experts or (expert_count(inner) if inner else 0)
