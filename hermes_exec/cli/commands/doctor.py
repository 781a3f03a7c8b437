"""`hermes-exec doctor`: tries each backend for real and says what it gives here, or the command that mends it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, printable, say, stdout, table
from hermes_exec.cli.kit.pools import AnyBackend, AsJson, Image, Options, make_pool, parse_options
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError

if TYPE_CHECKING:
    from hermes_exec.results import Isolation

TIME_LIMIT_S = 120.0
CALLS = 20
LIMITS: dict[str, float] = {
    "cpus": 0.5,
    "memory_mb": 256,
    "pids": 64,
    "open_files": 256,
    "file_size_mb": 64,
    "cpu_time_s": 60,
}


@dataclass
class Finding:
    """What one backend did when it was tried; times in milliseconds."""

    backend: str
    status: str = "ok"
    detail: str = ""
    launch_ms: float | None = None
    call_ms: float | None = None
    isolation: Isolation | None = None
    shared: str = ""
    """What each of several slots of one box sees of its files, where a tenant may have the whole box too."""
    limits: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def doctor(
    backend: AnyBackend = None,
    image: Image = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Start a slot on each backend and run commands in it; ends with 3 when the backend asked for does not work.

    Without --backend all are tried, and it ends with 0 when one of them works. No image needs to be pulled: where a
    backend needs one and none is named, a minimal one is made for the trial.
    """
    raise typer.Exit(run_async(lambda: _doctor(backend, image, option, as_json)))


async def _doctor(backend: str | None, image: str | None, option: list[str] | None, as_json: bool) -> int:
    from hermes_exec.backends.registry import backend_names
    from hermes_exec.cli.kit.known_backends import needs_options

    if backend is None and option:
        raise ConfigError("--option needs --backend")
    findings = []
    for name in [backend] if backend else backend_names():
        if not backend and needs_options(name):
            findings.append(Finding(name, "not tried", f"it needs options: hermes-exec doctor -b {name} -o …"))
            continue
        if not as_json:
            say(f"trying {name} …")
        findings.append(await _try(name, image, option))
    if as_json:
        emit_json(findings)
    else:
        _show(findings)
    return exits.OK if any(finding.status == "ok" for finding in findings) else exits.INFRA


async def _try(name: str, image: str | None, option: list[str] | None) -> Finding:
    finding = Finding(name)
    try:
        with anyio.fail_after(TIME_LIMIT_S):
            async with _trial(finding, image, option) as (trial, command):
                await _measure(finding, name, trial, option, command)
                whole = finding.isolation is not None and finding.isolation.level == "box"
                finding.limits = await _limits("limits" if whole else "slot_limits", name, trial, option)
                if whole:
                    pool = make_pool(name, trial, options=option, environ={}, slots_per_sandbox=2)
                    async with pool, pool.slot() as slot:
                        finding.shared = f"{slot.isolation.level}: {slot.isolation.filesystem}"
    except BackendUnavailable as error:
        finding.status, finding.detail = "unavailable", str(error)
    except TimeoutError:
        finding.status, finding.detail = "failed", f"no answer within {TIME_LIMIT_S:.0f} s"
    except ConfigError:
        raise
    except ExecError as error:
        finding.status, finding.detail = "failed", f"{type(error).__name__}: {error}"
    return finding


@asynccontextmanager
async def _trial(
    finding: Finding, image: str | None, option: list[str] | None
) -> AsyncIterator[tuple[str | None, str | list[str]]]:
    """An image for this backend, the one that is named or a minimal one, and a command that does next to nothing."""
    from hermes_exec.backends.base import Remarkable, TrialImage
    from hermes_exec.cli.kit.known_backends import backend_of

    backend = backend_of(finding.backend, parse_options(option))
    try:
        if isinstance(backend, Remarkable):
            finding.remarks = await backend.remarks()
        if image is None and isinstance(backend, TrialImage):
            async with backend.trial_image() as made:
                yield made
        else:
            yield image, "true"
    finally:
        await backend.aclose()


async def _measure(
    finding: Finding, name: str, image: str | None, option: list[str] | None, command: str | list[str]
) -> None:
    begin = time.perf_counter()
    async with make_pool(name, image, options=option, environ={}) as pool, pool.slot() as slot:
        finding.launch_ms = (time.perf_counter() - begin) * 1000
        finding.isolation = slot.isolation
        begin = time.perf_counter()
        for _ in range(CALLS):
            result = await slot.run(command, timeout_s=30)
            if not result.ok:
                finding.status, finding.detail = "failed", f"a command ended with {result.exit_code}: {result.stderr}"
                return
        finding.call_ms = (time.perf_counter() - begin) * 1000 / CALLS


async def _limits(whose: str, name: str, image: str | None, option: list[str] | None) -> dict[str, str]:
    """Ask for every limit, of the box or of the slot, and return how each is held."""
    wanted: dict[str, Any] = {whose: LIMITS, "best_effort_limits": True}
    pool = make_pool(name, image, options=option, environ={}, **wanted)
    async with pool, pool.slot() as slot:
        return dict(slot.isolation.limits)


def _show(findings: list[Finding]) -> None:
    rows = []
    for finding in findings:
        isolation = finding.isolation
        rung = f"{isolation.level} ({isolation.price_ms:.1f} ms)" if isolation else None
        launch = None if finding.launch_ms is None else f"{finding.launch_ms:.0f}"
        call = None if finding.call_ms is None else f"{finding.call_ms:.2f}"
        rows.append((finding.backend, finding.status, rung, launch, call, finding.detail))
    table(("backend", "status", "isolation (price)", "launch ms", "call ms", "detail"), rows)
    for finding in findings:
        for remark in finding.remarks:
            stdout().print(f"\n{finding.backend}: {printable(remark)}", markup=False)
        if finding.isolation is None:
            continue
        parts = [f"{n} {getattr(finding.isolation, n)}" for n in ("filesystem", "processes", "users", "network")]
        stdout().print(f"\n{finding.backend}: " + printable("; ".join(parts)), markup=False)
        if finding.shared:
            text = f"{finding.backend}: with several slots in a box {finding.shared}"
            stdout().print(printable(text), markup=False)
        limits = "; ".join(f"{limit}: {how}" for limit, how in finding.limits.items())
        stdout().print(f"{finding.backend}: limits {printable(limits) or 'none'}", markup=False)


def add_to(app: typer.Typer) -> None:
    """Add the command `doctor`."""
    app.command(epilog="Example: hermes-exec doctor --backend docker")(doctor)
