"""How many experts a model has, by its config: one list of the names that configs have for it.

Needs nothing else, since benchmarks of the learner import it where torch and transformers are all
there is.
"""

from collections.abc import Mapping
from typing import Any

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What configs call the number of experts in a layer."""


def expert_count(config: Any) -> int:
    """Experts in each layer, by a model's config.json or what transformers makes of it, the part
    for text in it included (`text_config`); 0 where it is dense."""
    fields = config if isinstance(config, Mapping) else vars(config)
    counts = (fields.get(name) for name in EXPERTS)
    found = next((count for count in counts if isinstance(count, int) and count > 1), 0)
    inner = fields.get("text_config")
    return found or (expert_count(inner) if inner else 0)
