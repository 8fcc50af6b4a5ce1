from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import make_tiny_model
from tests.services.training.service.served import Server, serving


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", sharpness=3.0)


@pytest.fixture(scope="package")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One service of adapters for all tests that do not end it."""
    with serving(tiny, tmp_path_factory.mktemp("service")) as running:
        yield running
