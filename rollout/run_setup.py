"""Puts together the parts that a worker needs to work on a run, or to serve a finished one, on the
vLLM that it has started."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout.episodes import load_episode
from rollout.heartbeat import Heartbeat
from rollout.rewards.client import RewardClient
from rollout.run_events import RunEvents
from rollout.settings import RolloutSettings
from rollout.vllm.client.expert_routing import bytes_per_token
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.model_files import TokenizerLike, eos_token_ids, layers, vocabulary
from rollout.vllm.process.serving import Served, Serving
from rollout.vllm.weights.canary_check import CanaryCheck
from rollout.vllm.weights.fetched_files import FetchedFiles
from rollout.vllm.weights.served_weights import ServedWeights
from rollout.vllm.weights.staging import Staging, only_whole
from rollout.vllm.weights.weight_follower import WeightFollower
from rollout.work.capacity import Sequences
from rollout.work.run_context import RunContext
from rollout.work.teacher import TeacherScorer
from services.contracts.config import RLConfig
from services.contracts.config.episodes import Sessions
from services.contracts.records import WorkerRecord
from services.payloads import Payloads
from services.runtime.gpus import installed_device
from services.runtime.tool_servers import ToolServer
from services.store import Store
from services.volume import Volume


@dataclass(frozen=True)
class WorkerParts:
    """The parts of a worker's process that outlive its runs."""

    settings: RolloutSettings
    store: Store
    record: WorkerRecord
    volume: Volume
    payloads: Payloads
    rewards: RewardClient
    tool_servers: Mapping[str, ToolServer]
    serving: Serving
    heartbeat: Heartbeat

    def follower(
        self,
        config: RLConfig,
        served: Served,
        model: Path,
        run_events: RunEvents,
        changed: Callable[[], None],
        distrust: Callable[[str], Awaitable[None]],
    ) -> WeightFollower:
        """Return what keeps the server on the versions of the run. `changed` and `distrust`: see
        `ServedWeights`."""
        policy, server = served
        masks = config.sampling.cuts and installed_device() != "cpu"
        limit, options = config.rollout.canary_limit, config.rollout.vllm
        canary = CanaryCheck(policy, options.computes_in, masks, limit, layers(model))
        staging = Staging(
            server.folder,
            whole=installed_device() in ("cpu", None)
            or bool(options.quantization)
            or only_whole(model),
        )
        mode = config.rollout.update_mode
        return WeightFollower(
            run_events.run,
            self.store,
            FetchedFiles(self.record.id, self.store, self.volume),
            ServedWeights(policy.weights, mode, canary, changed, distrust),
            staging,
            self.heartbeat.send,
        )

    async def context(
        self,
        config: RLConfig,
        policy: PolicyClient,
        model: Path,
        tokenizer: TokenizerLike,
        follower: WeightFollower,
        run_events: RunEvents,
    ) -> RunContext:
        """Return what all groups of the run share. Raises UnusableEpisode, VLLMUnavailable."""
        episode, taught = config.rollout.episode, config.algorithm.teacher
        longest, capacity = await policy.context_length(), await policy.capacity()
        explicit = config.rollout.vllm.max_num_seqs
        return RunContext(
            run=run_events.run,
            worker=self.record.id,
            config=config,
            policy=policy,
            follower=follower,
            rewards=self.rewards,
            tokenizer=tokenizer,
            episode=None
            if isinstance(episode, Sessions)
            else load_episode(episode, tokenizer, self.tool_servers, self.rewards),
            eos=eos_token_ids(model, tokenizer),
            payloads=self.payloads,
            context=longest,
            sequences=Sequences(
                explicit or capacity.sequences,
                None if explicit else capacity.cache_tokens,
                # The prompts are unknown yet: assume that they are as long as a completion may be.
                min(longest, 2 * config.max_tokens),
            ),
            vocabulary=vocabulary(model) if installed_device() == "cpu" else None,
            routing_bytes=bytes_per_token(model) if config.algorithm.router.replay else 0,
            tool_servers=self.tool_servers,
            teacher=TeacherScorer(taught, self.rewards, tokenizer, run_events)
            if taught is not None and taught.endpoint is not None
            else None,
            evaluation_only=self.settings.evaluation_only,
        )
