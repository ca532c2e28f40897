"""The settings, clients and limits that all groups of one worker on one run share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollout.episodes import Episode
from rollout.rewards.client import RewardClient
from rollout.vllm.client.policy_client import PolicyClient
from rollout.vllm.model_files import TokenizerLike
from rollout.vllm.weights.weight_follower import WeightFollower
from rollout.work.capacity import Sequences, slots
from rollout.work.teacher import TeacherScorer
from services.contracts.config.run import RLConfig
from services.payloads import Payloads
from services.runtime.tool_servers import ToolServer


@dataclass
class RunContext:
    run: str
    worker: str
    config: RLConfig
    policy: PolicyClient
    follower: WeightFollower
    rewards: RewardClient
    tokenizer: TokenizerLike
    episode: Episode | None
    """None: agents lead the episodes (`rollout.sessions`)."""
    eos: list[int]
    payloads: Payloads
    context: int
    """The longest prompt with its completion, in tokens."""
    sequences: Sequences
    """How many completions vLLM runs at once."""
    vocabulary: int | None = None
    """The model's vocabulary size, on a CPU only (`sampling_mask.request_params`)."""
    routing_bytes: int = 0
    """Bytes of one token's expert routing; 0 unless routing is replayed."""
    tool_servers: Mapping[str, ToolServer] = field(default_factory=dict)
    """MCP servers that this worker's operator has named."""
    teacher: TeacherScorer | None = None
    """The teacher, if it is a server. Any other teacher is a model of the learner."""
    evaluation_only: bool = False
    """Whether this worker only evaluates."""
    template_note: Path | None = None
    """A file that says that the run's chat template ended a worker. None: the worker's supervisor
    has it."""
    adapter: str = ""
    """The folder of the adapter that calls of the policy name; empty: the policy itself."""

    @property
    def group_slots(self) -> int:
        return slots(
            self.sequences.at_once,
            self.config.algorithm.samples_generated,
            self.config.rollout.groups_in_flight,
        )

    @property
    def completions(self) -> int:
        """Completions of the groups that fill vLLM."""
        return self.group_slots * self.config.algorithm.samples_generated

    @property
    def evaluation_share(self) -> float | None:
        """The part of vLLM that evaluation gets, if the config says so."""
        return self.config.evaluation.share if self.config.evaluation else None
