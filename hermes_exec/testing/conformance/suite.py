"""The run of the checks against a backend: independent checks run side by side, each in its own slot."""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.facts import Facts, learn, why_not
from hermes_exec.testing.conformance.registry import Check, NotGiven, PoolFactory, all_checks
from hermes_exec.testing.conformance.report import Outcome, Report, Status

if TYPE_CHECKING:
    from hermes_exec import SandboxPool

OnResult = Callable[[Outcome], Awaitable[None] | None]


async def run_conformance(
    pool_factory: PoolFactory,
    on_result: OnResult | None = None,
    select: Collection[str] | None = None,
    concurrency: int = 4,
) -> Report:
    """Run the checks and report all of them. A failed check never stops the others.

    `pool_factory(**overrides)` returns a new `SandboxPool` of the backend under test; `overrides` are keywords of
    `SandboxPool` and take precedence. `select` holds names of checks (default: all). `on_result` is called with each
    outcome.

    Raises:
        ExecError: If the factory's pool provides no slot.
        ValueError: If `select` names an unknown check.
    """
    started = time.monotonic()
    chosen = _select(select)
    facts = await learn(pool_factory)
    report = Report(facts)

    async def note(outcome: Outcome) -> None:
        report.outcomes.append(outcome)
        answer = on_result(outcome) if on_result else None
        if inspect.isawaitable(answer):
            await answer

    runnable = []
    for check in chosen:
        reason = why_not(facts, check.needs)
        if reason is None:
            runnable.append(check)
        else:
            await note(Outcome(check.name, check.group, check.meaning, "skipped", reason))
    async with pool_factory() as pool:
        gate = anyio.CapacityLimiter(concurrency)
        async with anyio.create_task_group() as tasks:
            for check in runnable:
                if not check.alone:
                    tasks.start_soon(_run_within_limit, gate, check, pool, pool_factory, facts, note)
        for check in runnable:
            if check.alone:
                await note(await run_check(check, pool, pool_factory, facts))
    report.duration_s = time.monotonic() - started
    return report


def _select(select: Collection[str] | None) -> list[Check]:
    checks = all_checks()
    if select is None:
        return checks
    unknown = sorted(set(select) - {check.name for check in checks})
    if unknown:
        raise ValueError(f"no such checks: {', '.join(unknown)}")
    return [check for check in checks if check.name in select]


async def _run_within_limit(
    gate: anyio.CapacityLimiter,
    check: Check,
    pool: SandboxPool,
    factory: PoolFactory,
    facts: Facts,
    note: Callable[[Outcome], Awaitable[None]],
) -> None:
    async with gate:
        outcome = await run_check(check, pool, factory, facts)
    await note(outcome)


async def run_check(check: Check, pool: SandboxPool, factory: PoolFactory, facts: Facts) -> Outcome:
    """Run one check and turn whatever it raises into its outcome."""
    started = time.monotonic()
    status: Status = "passed"
    reason = ""
    try:
        with anyio.fail_after(check.timeout_s):
            await _run(check, pool, factory, facts)
    except Exception as error:  # noqa: BLE001 - one check's failure is an outcome, not the end of the suite
        error = leaf(error)
        if isinstance(error, NotGiven):
            status, reason = "skipped", str(error)
        elif isinstance(error, TimeoutError) and time.monotonic() - started >= check.timeout_s:
            status, reason = "failed", f"not done within {check.timeout_s:g} s"
        else:
            status, reason = "failed", describe(error)
    return Outcome(check.name, check.group, check.meaning, status, reason, time.monotonic() - started)


def leaf(error: Exception) -> Exception:
    """Return the first exception in nested groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: Exception) -> str:
    """Return one line for a failure, with its position in the check."""
    text = f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
    frame = error.__traceback__
    while (
        frame is not None and frame.tb_next is not None and "conformance" in frame.tb_next.tb_frame.f_code.co_filename
    ):
        frame = frame.tb_next
    where = f" ({Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno})" if frame else ""
    return text[:2000] + where


async def _run(check: Check, pool: SandboxPool, factory: PoolFactory, facts: Facts) -> None:
    with tempfile.TemporaryDirectory(prefix="hermes-conformance-") as directory:
        if check.own_pool:
            await check.run(Context(factory, facts, Path(directory)))
            return
        async with pool.slot() as slot:
            await check.run(Context(factory, facts, Path(directory), slot))
