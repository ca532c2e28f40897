"""`headrace why` says what samples cost, by the GPUs that work on the run."""

from services.contracts.devices import GPUDevice
from services.contracts.prices import Prices, SamplePrice
from services.contracts.why import Situation
from services.diagnosis.diagnose import diagnose
from tests.unit.diagnosis.situations import NOW, run, step, worker

PRICES = Prices.parse("3.60 USD,spot=0.36")
ON_GPU = {"device": "1 × NVIDIA H100, PyTorch 2.9.0"}


def cost(prices: Prices | None = PRICES, **fields: object) -> SamplePrice | None:
    device = GPUDevice(uuid="a", name="NVIDIA L4", memory=1)
    spot = worker(worker_class="spot", devices=[device])
    elsewhere = worker(id="other", run="r2", devices=[device.model_copy(update={"uuid": "b"})])
    given = {
        "run": run(computation=ON_GPU),
        "workers": [spot, elsewhere],
        "events": [step(1.0, **{"throughput/samples_per_second": 2.0})],
    }
    return diagnose(Situation(NOW, **(given | fields)), prices).cost  # type: ignore[arg-type]


def test_samples_cost_what_the_gpus_at_work_cost_now() -> None:
    assert cost() == SamplePrice(
        per_1000_samples=3.96 / 7.2,
        per_hour=3.96,
        currency="USD",
        gpus={"NVIDIA H100": 1, "spot": 1},
    )


def test_no_cost_is_said_without_a_price_or_a_step() -> None:
    assert cost(None) is None
    assert cost(events=[]) is None
