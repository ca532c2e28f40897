"""Whether the models that a submission names are there, and fit what is asked of them."""

import json
import os
from pathlib import Path
from typing import Any

from services.contracts.config import RLConfig
from services.contracts.config.lora import BESIDE_EXPERTS
from services.contracts.experts import expert_count
from services.contracts.weights import ADAPTER_CONFIG
from services.gateway.access import Access, find_run
from services.http import Problem
from services.model_path import PREFIX, base_of, made_by, run_named

Problems = list[tuple[str, str]]


async def check_model(
    given: Access, raw: dict[str, Any], problems: Problems
) -> tuple[dict[str, Any], Path | None]:
    """`raw` with the model named so that it means the same on every host and for ever, and its
    folder, where it has one here. What is wrong goes to `problems`."""
    section = raw.get("model")
    path = section.get("path") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(path, str) or not path:
        return raw, None
    try:
        settled, folder = await _settled(given, path)
        if folder is not None:
            base_of(folder)
    except (Problem, ValueError) as error:
        problems.append(("model.path", str(error)))
        return raw, None
    return {**raw, "model": {**section, "path": settled}}, folder


async def check_critic(given: Access, raw: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """`raw` with the critic's model named as `check_model` does the policy's."""
    algorithm = raw.get("algorithm")
    critic = algorithm.get("critic") if isinstance(algorithm, dict) else None
    if not isinstance(algorithm, dict) or not isinstance(critic, dict):
        return raw
    path = critic.get("path")
    if not isinstance(path, str) or not path:
        return raw
    try:
        settled, _ = await _settled(given, path)
    except (Problem, ValueError) as error:
        problems.append(("algorithm.critic.path", str(error)))
        return raw
    return {**raw, "algorithm": {**algorithm, "critic": {**critic, "path": settled}}}


async def _settled(given: Access, path: str) -> tuple[str, Path | None]:
    """What `path` means, and its folder. Raises Problem or ValueError where it means nothing."""
    if (name := run_named(path)) is not None:
        run = await find_run(given, name)
        folder = made_by(run, given.volume)
        if not run.state.final:
            # Its checkpoints come and go; what this run starts from has to stay.
            raise ValueError(
                f"run {run.name} ({run.id}) is {run.state}: its checkpoint is not its last one; "
                "wait for its end, or cancel it"
            )
        return PREFIX + run.id, folder
    # os.path: what no file can be called, or no user, is no folder, and no reason to raise.
    for folder in (Path(os.path.expanduser(path)), given.volume.root / path):
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
    """vLLM refuses a context longer than the positions that the model was made for; better said
    now than by its log."""
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
    """Only a mixture of experts has routers, and it takes no adapters."""
    described = _described(Path(base_of(folder) or folder))
    if not described:
        return []
    if expert_count(described):
        return [("model.lora", BESIDE_EXPERTS)] if config.model.lora else []
    if not config.algorithm.router.wanted:
        return []
    return [
        (
            "algorithm.router",
            f"the model in {folder} has no experts to route to: leave algorithm.router out",
        )
    ]


def _described(folder: Path) -> dict[str, Any]:
    """A model's config.json; nothing where it cannot be read."""
    try:
        described = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return described if isinstance(described, dict) else {}


def _positions(folder: Path) -> int | None:
    """Longest sequence by a model's config; None where that does not say it plainly."""
    described = _described(folder)
    # Scaled rotary positions go further than the number says.
    scaling = described.get("rope_scaling") or described.get("rope_parameters") or {}
    plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    found = described.get("max_position_embeddings")
    return found if plain and isinstance(found, int) else None
