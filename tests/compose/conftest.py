"""One installation for all tests here: builds images, starts the CPU profile, removes everything.

HEADRACE_COMPOSE_BUILD=no uses existing images.
"""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.compose.installation import Installation, build


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    """The installation with its images, not started."""
    assert shutil.which("docker"), "these tests need Docker with Compose"
    installation = Installation()
    if os.environ.get("HEADRACE_COMPOSE_BUILD") != "no":
        build(installation.tag)
    installation.down()
    try:
        yield installation
    finally:
        installation.down()


@pytest.fixture
def running(installation: Installation) -> Installation:
    """The installation, started and healthy; a test before this one may have ended it."""
    installation.up()
    return installation
