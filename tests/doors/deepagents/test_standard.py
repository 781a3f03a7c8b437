"""The suite of langchain-tests for sandboxes, on a slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from hermes_exec import SandboxPool
from hermes_langchain import HermesSandbox

OF_OLDER_VERSIONS = {
    "test_glob": "0.7 returns absolute paths",
    "test_glob_basic_pattern": "0.7 returns absolute paths",
    "test_glob_hidden_files_explicitly": "0.7 returns absolute paths",
    "test_glob_with_character_class": "0.7 returns absolute paths",
    "test_glob_with_question_mark": "0.7 returns absolute paths",
    "test_glob_with_directories": "0.7 matches regular files only",
    "test_write_existing_file_fails": "0.7 replaces existing files",
}
"""Tests of langchain-tests 1.1.9 that expect what deepagents did before 0.7."""


@pytest.fixture(autouse=True)
def expect_failure(request: pytest.FixtureRequest) -> None:
    if reason := OF_OLDER_VERSIONS.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.mark.filterwarnings("ignore:Class-scoped fixtures:pytest.PytestRemovedIn10Warning")
class TestSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[HermesSandbox]:
        python = "mkdir bin && ln -s $(command -v python3) bin/python"  # two tests run a program `python`
        env = {"PATH": "/workspace/bin:/usr/bin:/bin"}
        pool = SandboxPool("local", min_isolation="namespaces", slot_setup=python, env=env)
        with pool as entered, entered.slot() as slot:
            yield HermesSandbox(slot)
