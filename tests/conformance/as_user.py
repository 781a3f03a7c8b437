"""The suite as an ordinary user: a program that prints its outcomes as JSON, and what starts it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import anyio
import pytest

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import Outcome, run_conformance
from tests.support.ordinary_user import run_as_ordinary_user


def outcomes_as_user(request: pytest.FixtureRequest, backend: str, **options: Any) -> dict[str, Outcome]:
    """The outcomes of those checks that the module of this request has, over pools of a backend with options."""
    if os.geteuid() != 0:
        pytest.skip("the tests run as an ordinary user: the other module is this")
    printed = run_as_ordinary_user("tests.conformance.as_user", backend, json.dumps(options), *chosen(request))
    return {fields["name"]: Outcome(**fields) for fields in json.loads(printed)}


def chosen(request: pytest.FixtureRequest) -> list[str]:
    """The names of the checks that the module of this request has."""
    return [
        str(item.callspec.params["conformance_check"])
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]


def main() -> None:
    """Run over pools of a backend with options, as JSON, all checks or those named in the arguments."""
    backend, options, *names = sys.argv[1:]
    factory = partial(SandboxPool, backend, **json.loads(options))
    report = anyio.run(partial(run_conformance, factory, select=set(names) or None))
    json.dump([asdict(outcome) for outcome in report.outcomes], sys.stdout)


if __name__ == "__main__":
    main()
