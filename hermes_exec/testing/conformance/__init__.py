"""The conformance suite: published checks of the behaviours that every backend must have, also for other packages."""

from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.facts import Facts
from hermes_exec.testing.conformance.registry import NEEDS, Check, NotGiven, PoolFactory, all_checks, check
from hermes_exec.testing.conformance.report import Outcome, Report
from hermes_exec.testing.conformance.suite import run_conformance

__all__ = [
    "NEEDS",
    "Check",
    "Context",
    "Facts",
    "NotGiven",
    "Outcome",
    "PoolFactory",
    "Report",
    "all_checks",
    "check",
    "run_conformance",
]
