"""The shortest configs that work, and the messages for configs that do not."""

from typing import Any

import pytest

from services.contracts.config import ConfigError, RLConfig, parse_config

RL: dict[str, Any] = {
    "model": {"path": "/models/small"},
    "data": {"dataset": "sums"},
    "rewards": [{"verifier": "math"}],
}
SFT: dict[str, Any] = {
    "type": "sft",
    "model": {"source": "scratch"},
    "data": {"dataset": "sums"},
}


def rl(**sections: Any) -> RLConfig:
    """A whole config with these sections."""
    config = parse_config(RL | sections)
    assert isinstance(config, RLConfig)
    return config


def refusal(raw: dict[str, Any]) -> dict[str, str]:
    """Return the messages of a refused config, by key."""
    with pytest.raises(ConfigError) as refused:
        parse_config(raw)
    return dict(refused.value.problems)
