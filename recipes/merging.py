"""Overrides over a recipe, as `headrace.merging` merges them, with the errors of a config."""

from typing import Any

from headrace import merging


def merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`overrides` over `base`; neither is changed. Raises ConfigError for a place that a list of
    `base` does not have."""
    # Here, since the config's models take 0.3 s to build.
    from services.contracts.config import ConfigError

    try:
        return merging.merged(base, overrides)
    except merging.NoSuchPlace as error:
        raise ConfigError([(error.key, error.problem)]) from None
