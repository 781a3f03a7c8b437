"""Runs the suite over the local backend and prints the outcomes as JSON: a test starts it as an ordinary user."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial

import anyio

from hermes_exec import SandboxPool
from hermes_exec.testing.conformance import run_conformance


def main() -> None:
    """Run all checks, or those named in the arguments."""
    select = set(sys.argv[1:]) or None
    report = anyio.run(partial(run_conformance, partial(SandboxPool, "local"), select=select))
    json.dump([asdict(outcome) for outcome in report.outcomes], sys.stdout)


if __name__ == "__main__":
    main()
