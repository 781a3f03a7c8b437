"""A pytest plugin that runs the conformance suite against a backend, with one test for each behaviour.

Use it with `pytest_plugins = ["hermes_exec.testing.plugin"]` in the top conftest.py, and a test module with

    from hermes_exec.testing.plugin import test_conformance

    @pytest.fixture(scope="module")
    def conformance_pool_factory():
        return functools.partial(SandboxPool, "my-backend", image="…")

Behaviours that the backend or image cannot provide are skipped with the reason. `conformance_known_failures` maps
names of checks to reasons and turns their failures into expected ones. A known failure that passes is a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio
import pytest

from hermes_exec.testing.conformance import Outcome, PoolFactory, all_checks, run_conformance

__all__ = ["conformance_known_failures", "conformance_outcomes", "conformance_pool_factory", "test_conformance"]


@pytest.fixture(scope="module")
def conformance_pool_factory() -> PoolFactory:
    """Return the factory for pools of the backend under test. A test module overrides this fixture."""
    raise pytest.UsageError(
        "define a fixture conformance_pool_factory that returns a function **overrides -> SandboxPool"
    )


@pytest.fixture(scope="module")
def conformance_known_failures() -> Mapping[str, str]:
    """Return the checks that are known to fail, as a mapping of names to reasons."""
    return {}


@pytest.fixture(scope="module")
def conformance_outcomes(request: pytest.FixtureRequest, conformance_pool_factory: PoolFactory) -> dict[str, Outcome]:
    """Run the selected checks of this module side by side, and keep their outcomes."""
    here = {
        str(item.callspec.params["conformance_check"])
        for item in request.session.items
        if item.path == request.path
        and isinstance(item, pytest.Function)
        and "conformance_check" in getattr(getattr(item, "callspec", None), "params", {})
    }
    report = anyio.run(partial(run_conformance, conformance_pool_factory, select=here))
    return {outcome.name: outcome for outcome in report.outcomes}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, also without pytest-timeout."""
    config.addinivalue_line("markers", "timeout(seconds): the time limit of a test (pytest-timeout)")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("conformance_check", [check.name for check in all_checks()])
def test_conformance(
    conformance_check: str, conformance_outcomes: dict[str, Outcome], conformance_known_failures: Mapping[str, str]
) -> None:
    """Check one behaviour of the backend."""
    outcome = conformance_outcomes[conformance_check]
    known_failure = conformance_known_failures.get(conformance_check)
    if outcome.status == "skipped":
        pytest.skip(f"{conformance_check}: {outcome.reason}")  # with the name: pytest folds equal reasons into one line
    if outcome.status == "failed":
        if known_failure is not None:
            pytest.xfail(known_failure)
        pytest.fail(f"{outcome.meaning}\n\n{outcome.reason}", pytrace=False)
    if known_failure is not None:
        pytest.fail(f"{conformance_check} passes, though it is known to fail ({known_failure})", pytrace=False)
