"""Checkpoints that calls wait for: a worker takes each demand once, under a lease."""

from services.contracts.policy_calls import Failure
from services.contracts.served_models import DemandState, ModelDemand
from services.store import Store

DEMAND = ModelDemand("r", 4, "runs/r/checkpoints/step-000004-a")
OTHER = ModelDemand("r", 2, "runs/r/checkpoints/step-000002-a")


async def test_a_demand_is_taken_once_and_again_when_its_worker_is_gone(store: Store) -> None:
    demands = store.model_demands
    assert await demands.take("p", "a") is None
    for _ in range(2):
        assert await demands.want("p", DEMAND, ["a", "b"]) == DemandState()
    assert await demands.want("p", OTHER, ["a", "b"]) == DemandState()
    assert await demands.take("p", "a") == DEMAND
    assert await demands.take("p", "b") == OTHER
    assert await demands.take("p", "b") is None
    assert await demands.take("other", "c") is None

    await demands.keep("p", "a", [DEMAND.name])
    assert await demands.want("p", DEMAND, ["a", "b"]) == DemandState(worker="a")
    # The worker has died: another one takes the demand.
    assert await demands.want("p", DEMAND, ["b"]) == DemandState()
    assert await demands.take("p", "b") == DEMAND

    failure = Failure(status=422, message="model.safetensors is damaged")
    await demands.fail("p", DEMAND, failure)
    assert await demands.want("p", DEMAND, ["b"]) == DemandState(failure=failure)
    await demands.release("p", OTHER.name)
    assert await demands.want("p", OTHER, ["b"]) == DemandState()
