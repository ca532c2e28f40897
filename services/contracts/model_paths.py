"""The keys of a run config that name a model, and their values. Pure.

Everything that follows a run's models to other runs reads this list: chains, submission, deletion
and retention.
"""

from typing import Any

POLICY = "model.path"
CRITIC = "algorithm.critic.path"
TEACHER = "algorithm.teacher.path"
REFERENCE = "algorithm.kl.reference.path"
MODEL_PATHS = (POLICY, CRITIC, TEACHER, REFERENCE)


def path_at(config: Any, key: str) -> str | None:
    """The path that `config` has at `key`; None for anything else than a string."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return config if isinstance(config, str) else None


def with_path(config: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    """`config`, which has a section for `key`, with `path` at `key`."""
    name, _, rest = key.partition(".")
    return {**config, name: with_path(config[name], rest, path) if rest else path}
