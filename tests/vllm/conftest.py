from collections.abc import Iterator
from pathlib import Path

import pytest
import serving


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return serving.make_model(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "trace.jsonl"
