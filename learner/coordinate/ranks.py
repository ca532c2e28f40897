"""All ranks of a run take it over together, and join their gradients."""

from learner.distributed import Ranks
from learner.model.placement.offload import present
from learner.model.placement.parallel import replicate
from learner.state import TrainingState
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
