"""Whether the models that a submission names exist, and fit its config."""

import json
import os
from pathlib import Path
from typing import Any

from services.contracts.config import RLConfig
from services.contracts.config.lora import BESIDE_EXPERTS
from services.contracts.experts import expert_count
from services.contracts.weights import ADAPTER_CONFIG
from services.gateway.dependencies import Dependencies, find_run
from services.http import Problem
from services.runtime.model_path import PREFIX, base_of, checkpoint_of, run_named

Problems = list[tuple[str, str]]


async def check_models(
    deps: Dependencies, raw: dict[str, Any], problems: Problems
) -> tuple[dict[str, Any], Path | None]:
    """`raw` with the models of policy and critic named so that they mean the same on every host and
    for ever; and the policy's folder, if it has one here. Adds what is wrong to `problems`."""
    model, folder = await _checked(deps, raw.get("model"), "model.path", problems)
    if folder is not None:
        try:
            base_of(folder)
        except ValueError as error:
            problems.append(("model.path", str(error)))
            folder = None
    raw = raw if model is None else {**raw, "model": model}
    algorithm = raw.get("algorithm")
    if isinstance(algorithm, dict):
        critic = algorithm.get("critic")
        critic, _ = await _checked(deps, critic, "algorithm.critic.path", problems)
        raw = raw if critic is None else {**raw, "algorithm": {**algorithm, "critic": critic}}
    return raw, folder


async def _checked(
    deps: Dependencies, section: Any, key: str, problems: Problems
) -> tuple[dict[str, Any] | None, Path | None]:
    """`section` with its `path` resolved, and the path's folder; None where there is no path."""
    path = section.get("path") if isinstance(section, dict) else None
    if not isinstance(path, str) or not path:
        return None, None
    try:
        resolved, folder = await _resolved(deps, path)
    except (Problem, ValueError) as error:
        problems.append((key, str(error)))
        return None, None
    return {**section, "path": resolved}, folder


async def _resolved(deps: Dependencies, path: str) -> tuple[str, Path | None]:
    """What `path` means, and its folder if it is here. Raises Problem or ValueError for none."""
    if (name := run_named(path)) is not None:
        run = await find_run(deps, name)
        folder = deps.volume.path(checkpoint_of(run))
        if not run.state.final:
            # Its checkpoints are deleted while it goes on.
            raise ValueError(
                f"run {run.name} ({run.id}) is {run.state}: its checkpoint is not its last one; "
                "wait for its end, or cancel it"
            )
        return PREFIX + run.id, folder
    # os.path does not raise for names that no file or user can have.
    for folder in (Path(os.path.expanduser(path)), deps.volume.root / path):
        if os.path.isdir(folder):
            if not (folder / "config.json").is_file() and not (folder / ADAPTER_CONFIG).is_file():
                raise ValueError(
                    f"{folder} holds no config.json: name a folder in Hugging Face layout"
                )
            return str(folder.resolve()), folder
    if path.count("/") == 1 and not path.startswith((".", "/", "~")):
        # A hub name. Only a host with a network, or with the model in its cache, can tell.
        return path, None
    raise ValueError(
        f"there is no model at {path!r}: name a folder in Hugging Face layout, a hub name "
        "(org/name), or run:RUN for the checkpoint of an earlier run"
    )


def check_context(folder: Path, config: RLConfig) -> Problems:
    """A problem for a context longer than the model's positions, which vLLM would refuse."""
    wanted = config.rollout.vllm.max_model_len
    positions = _positions(Path(base_of(folder) or folder))
    if wanted is None or positions is None or wanted <= positions:
        return []
    return [
        (
            "rollout.vllm.max_model_len",
            f"{wanted} is more than the {positions} positions of the model: set it to {positions} "
            "or less, and sampling.max_tokens below that",
        )
    ]


def check_experts(folder: Path, config: RLConfig) -> Problems:
    """A problem for adapters on a mixture of experts, or routers on any other model."""
    described = _described(Path(base_of(folder) or folder))
    if not described:
        return []
    if expert_count(described):
        return [("model.lora", BESIDE_EXPERTS)] if config.model.lora else []
    if not config.algorithm.router.needs_experts:
        return []
    return [
        (
            "algorithm.router",
            f"the model in {folder} has no experts to route to: leave algorithm.router out",
        )
    ]


def _described(folder: Path) -> dict[str, Any]:
    """A model's config.json; empty if it cannot be read."""
    try:
        described = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}


def _positions(folder: Path) -> int | None:
    """Longest sequence by a model's config; None if the config leaves it open."""
    described = _described(folder)
    # Scaled rotary positions go further than the number says.
    scaling = described.get("rope_scaling") or described.get("rope_parameters") or {}
    plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    found = described.get("max_position_embeddings")
    return found if plain and isinstance(found, int) else None
