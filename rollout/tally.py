"""What a worker's heartbeat says about its work."""

from dataclasses import dataclass, field

from rollout.progress import Rate


@dataclass
class Tally:
    """Counted and noted while a run is worked on."""

    state: str = "starting"
    tokens: int = 0
    rate: Rate = field(default_factory=Rate)
    admission_wait: float = 0.0
    groups: int = 0
    error: str = ""
