"""Recipes: one commented YAML file per known-good run, and the merging of overrides.

A recipe begins with `# when: …`. It has the keys of the run config (`services.contracts.config`)
whose value is its own choice; `grpo`, `sft` and `live` show usual keys too.
`chains/` has chains of runs: `steps`, each with a name, a recipe and its overrides.
Nothing here validates: `parse_config` does, after merging.
"""

from headrace.recipe import Recipe, UnknownRecipe, read_recipe
from recipes.library import (
    find_chain,
    find_recipe,
    list_chains,
    list_recipes,
)
from recipes.merging import merged
