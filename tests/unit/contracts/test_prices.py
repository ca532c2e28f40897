"""What a GPU-hour costs, and what samples cost by it."""

import pytest

from services.contracts.prices import AtWork, Prices, gpus_at_work

L4 = "NVIDIA L4"


def test_a_gpu_costs_its_class_or_its_name_or_the_usual_price() -> None:
    prices = Prices.parse(f"2.50 USD, spot=0.90,{L4}=0.7")
    costs = [prices.gpu_hour(AtWork(*gpu)) for gpu in [("", "H100"), ("spot", L4), ("mine", L4)]]
    assert costs == [2.5, 0.9, 0.7]
    assert prices.currency == "USD"
    assert Prices.parse("3") == Prices(3.0)


@pytest.mark.parametrize(
    "text", ["", "USD", "-1", "1e400", "2.5 USD,spot", "2 USD,=1", "2 USD,spot=1 EUR", "nan"]
)
def test_a_price_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"the price of a GPU-hour .*: write `2.50 USD`"):
        Prices.parse(text)


def test_samples_cost_what_all_gpus_cost_while_they_are_trained() -> None:
    gpus = gpus_at_work(
        {"device": "2 × H100, PyTorch 2.9.0"},
        # Two workers share a GPU.
        [("spot", {"a": L4}), ("spot", {"a": L4}), ("", {"b": "H100"})],
    )
    price = Prices.parse("3 USD,spot=0.6").of_samples(gpus, samples_per_second=2.0)
    assert price is not None
    assert price.gpus == {"H100": 3, "spot": 1}
    assert price.per_hour == pytest.approx(9.6)
    # 7,200 samples an hour.
    assert price.per_1000_samples == pytest.approx(9.6 / 7.2)


def test_a_gpu_on_which_learner_and_vllm_take_turns_counts_once() -> None:
    computation = {"device": f"1 × {L4}", "gpu": "learner and vLLM take turns"}
    assert gpus_at_work(computation, [("spot", {"a": L4})]) == [AtWork("", L4)]


def test_nothing_is_said_without_gpus_or_samples() -> None:
    prices = Prices.parse("1 USD")
    assert (
        prices.of_samples(gpus_at_work({"device": "2 × rank on a CPU, PyTorch 2.9.0"}, []), 1.0)
        is None
    )
    assert prices.of_samples([AtWork("", L4)], 0.0) is None
    assert prices.of_samples([AtWork("", L4)], float("nan")) is None
