"""The verdict of every attack on every level is the verdict in docs/evidence/attacks.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.attack.campaign import alone, campaign
from tests.attack.levels import LEVELS
from tests.attack.model import Outcome, Row
from tests.attack.page import PAGE, key, written
from tests.attack.table import ROWS
from tests.conftest import missing, require_engine

pytestmark = [pytest.mark.timeout(600)]
BY_ID = {row.id: row for row in ROWS}
ALONE = [row for row in ROWS if row.attack.succeeds_alone and row.against == row.attack.against[0]]


def _collected(request: pytest.FixtureRequest, parameter: str, level: str | None = None) -> list[Row]:
    """The rows of this run, so that a part of the tests fires a part of the attacks."""
    found = []
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path == request.path and parameter in parameters and (level is None or parameters["level"] == level):
            found.append(BY_ID[parameters[parameter]])
    return found


def _needs_root(level: str) -> bool:
    return LEVELS[level].backend != "docker" and not LEVELS[level].ordinary_user and os.geteuid() != 0


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(level.id, marks=() if level.backend == "local" else getattr(pytest.mark, level.backend))
        for level in LEVELS.values()
    ],
)
def level(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    require_engine(LEVELS[name].backend)
    if _needs_root(name):
        pytest.skip("not root")
    return name


@pytest.fixture(scope="module")
def campaigns(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Outcome]]]]:
    """All levels, two at a time: most of the time of a campaign is waiting."""
    with ThreadPoolExecutor(2) as threads:
        begun = {
            name: threads.submit(campaign, level, rows)
            for name, level in LEVELS.items()
            if (rows := _collected(request, "row", name)) and missing(level.backend) is None and not _needs_root(name)
        }
        yield begun


@pytest.fixture(scope="module")
def outcomes(level: str, campaigns: dict[str, Future[dict[str, Outcome]]]) -> dict[str, Outcome]:
    return campaigns[level].result()


@pytest.fixture(scope="module")
def verdicts() -> dict[str, dict[str, str]]:
    return written(PAGE.read_text())


@pytest.mark.parametrize("row", BY_ID)
def test_it_comes_to_what_the_page_says(
    row: str, level: str, outcomes: dict[str, Outcome], verdicts: dict[str, dict[str, str]]
) -> None:
    outcome = outcomes[row]
    assert outcome.verdict == verdicts[level].get(key(BY_ID[row])), outcome.detail


@pytest.fixture(scope="module")
def achieved(request: pytest.FixtureRequest) -> dict[str, str]:
    return alone(LEVELS["namespaces" if os.geteuid() == 0 else "namespaces-user"], _collected(request, "own_row"))


@pytest.mark.parametrize("own_row", [row.id for row in ALONE])
def test_it_succeeds_where_nothing_is_between(own_row: str, achieved: dict[str, str]) -> None:
    assert achieved[own_row]
