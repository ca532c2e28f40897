"""One reward service for all workers that tests start."""

from collections.abc import Iterator
from functools import partial

import pytest

from services.launch import Stack, UpOptions
from services.runtime.api_key import REWARD_KEY, kept_key
from tests.integration.rollout.working import Work, working_with


@pytest.fixture(scope="session")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that names the reward service."""
    data = tmp_path_factory.mktemp("scoring")
    with Stack(UpOptions(data=data, parts=frozenset({"reward"}), reward_port=0)) as stack:
        yield {
            "HEADRACE_REWARD_URL": stack.reward_url,
            "HEADRACE_REWARD_KEY": kept_key(data / REWARD_KEY),
        }


@pytest.fixture
def working(scoring: dict[str, str]) -> Work:
    """Starts a worker; see `working_with`."""
    return partial(working_with, scoring)
