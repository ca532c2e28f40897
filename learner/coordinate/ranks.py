"""The steps that all ranks of a run take together: take over the run, join gradients, and receive
the next command."""

from learner.coordinate.crash_limit import CrashLimit
from learner.coordinate.first_rank import FirstRank
from learner.coordinate.follower import RankFollower
from learner.distributed import Ranks
from learner.model.placement.offload import present
from learner.model.placement.parallel import replicate
from learner.state import TrainingState
from learner.store.commands import Command, decode, encode
from learner.store.run_store import RunStore
from services.contracts.records import RunRecord


def take_over(ranks: Ranks, store: RunStore) -> RunRecord:
    """Take over the run (rank 0), for all ranks. Returns on every rank the run's record at that
    time. No earlier learner can change it after that."""

    def acquired() -> bytes:
        record = store.acquire()
        started = store.fencing_token, store.lineage.encode()
        return b"%d %b %b" % (*started, record.model_dump_json().encode())

    token, lineage, record = ranks.from_first(acquired).split(b" ", 2)
    store.fencing_token, store.lineage = int(token), lineage.decode()
    return RunRecord.model_validate_json(record)


def share_gradients(state: TrainingState, ranks: Ranks) -> None:
    """Have the backward passes of several ranks sum the gradients of unsharded weights."""
    state.policy = replicate(state.policy, ranks)
    if critic := state.critic:
        with present(critic.offloaded_weights, changed=False):
            critic.values = replicate(critic.values, ranks)


def next_command(
    coordinator: FirstRank | RankFollower, ranks: Ranks, crash_limit: CrashLimit
) -> Command:
    """Return rank 0's next command on every rank. A rank that waits for the command is idle: its
    death is not the run's fault."""
    crash_limit.idle()

    def make() -> bytes:
        assert isinstance(coordinator, FirstRank)
        return encode(coordinator.next_command())

    command = decode(ranks.from_first(make))
    if command.kind == "train":
        crash_limit.busy(command.step)
    return command
