"""Fixtures of the environments: atroposlib works on asyncio alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.atropos.inference_server import make_tokenizer


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a small tokenizer."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
