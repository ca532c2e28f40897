"""Whether a run's workers can make its episodes, and have the GPUs for its vLLM."""

from services.contracts.config import RLConfig
from services.contracts.config.episodes import (
    Episode,
    OwnEpisode,
    Tools,
    own_episodes,
    unknown_episode,
)
from services.gateway.dependencies import Dependencies
from services.gateway.submission.model_check import Problems
from services.runtime.tool_servers import tool_servers, unknown_server, usable


async def check_episodes(deps: Dependencies, config: RLConfig) -> Problems:
    """A problem for each episode whose type is not installed, and for each MCP server that is not
    named: neither here nor with a worker that is there now."""
    named: dict[str, Episode | None] = {"rollout.episode": config.rollout.episode}
    named |= {f"data.mix.{i}.episode": episode.episode for i, episode in enumerate(config.data.mix)}
    asked = {key: episode.name for key, episode in named.items() if isinstance(episode, OwnEpisode)}
    tools = {key: episode.servers for key, episode in named.items() if isinstance(episode, Tools)}
    if not (asked or tools):
        return []
    workers = await deps.store.workers.list()
    here = tool_servers(deps.settings.mcp_servers)
    known = {*usable(here), *(name for worker in workers for name in worker.tool_servers)}
    problems: Problems = []
    for key, servers in tools.items():
        for at, name in enumerate(servers):
            if name not in known:
                wrong = here[name].problem if name in here else ""
                problems.append((f"{key}.servers.{at}", unknown_server(name, known, wrong)))
    installed = {*own_episodes(), *(name for worker in workers for name in worker.episodes)}
    return problems + [
        (key, unknown_episode(name, installed))
        for key, name in asked.items()
        if name not in installed
    ]


async def check_gpus(deps: Dependencies, pool: str, config: RLConfig) -> list[str]:
    """Warn if no present worker has enough GPUs for one vLLM server."""
    wanted = config.rollout.vllm.tensor_parallel_size
    workers = await deps.store.workers.list(pool)
    most = max((worker.gpus for worker in workers if worker.gpus is not None), default=wanted)
    if wanted == 1 or most >= wanted:
        return []
    return [
        f"rollout.vllm.tensor_parallel_size: {wanted} is more than the {most} GPUs that a worker "
        f"of pool {pool} has: lower it, or start workers with HEADRACE_GPUS_PER_WORKER={wanted}"
    ]
