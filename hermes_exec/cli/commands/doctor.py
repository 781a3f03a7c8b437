"""`hermes-exec doctor`: tries each backend for real, and prints its abilities here, or a command that fixes it."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, printable, say, stdout, table
from hermes_exec.cli.kit.pools import AnyBackend, AsJson, Config, Image, Options, pool_of, settings_of
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from hermes_exec.results import Isolation
    from hermes_exec.slot.slot import Slot

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
ONE_SLOT: dict[str, Any] = {
    "min_sandboxes": 0,
    "profiles": {},
    "files": {},
    "setup": (),
    "slot_setup": (),
}
"""A trial is of the backend, without the pool's contents of slots."""


@dataclass
class Finding:
    """The result of trying one backend, or one of its hosts; times in milliseconds."""

    backend: str
    host: str | None = None
    status: str = "ok"
    detail: str = ""
    launch_ms: float | None = None
    call_ms: float | None = None
    isolation: Isolation | None = None
    shared: str = ""
    """The isolation of several slots in one sandbox, for a backend where a holder may also have the whole sandbox."""
    limits: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    browser: str = ""
    """Whether the browser tools work there, and how long a browser takes to start."""

    @property
    def name(self) -> str:
        """The backend, and the host if it has several."""
        return f"{self.backend} {self.host}" if self.host else self.backend


def doctor(
    backend: AnyBackend = None,
    image: Image = None,
    config: Config = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Start a slot on each backend and run commands in it; ends with 3 when the selected backend does not work.

    Without --backend all are tried at once, also the backends of a configuration file, and it ends with 0 when one
    works. A backend with several hosts is tried on each of them: each has a row, and the backend works when one host
    works. No image needs to be pulled: where a local engine needs an image and none is given, a minimal one is created
    for the trial. nomad and modal need --image.
    """
    raise typer.Exit(run_async(lambda: _run_doctor(backend, image, config, option, as_json)))


async def _run_doctor(
    backend: str | None, image: str | None, config: Path | None, option: list[str] | None, as_json: bool
) -> int:
    from hermes_exec.backends.registry import backend_names, has_client
    from hermes_exec.cli.kit.known_backends import needs_options, select_backends

    wanted = select_backends(backend, config, option)
    findings: list[Finding] = []
    if not as_json:
        say(f"trying {', '.join(wanted.names)} …")
    async with anyio.create_task_group() as tasks:
        for name in wanted.names:
            settings = partial(settings_of, name, image, config, option, environ={})
            hosts = _select_hosts(settings)
            for host, options in hosts.items() or [(None, {})]:
                findings.append(Finding(name, host))
                known = name in wanted.in_file or host is not None
                trial = partial(_try, alone=wanted.alone and host is None, configured=known)
                tasks.start_soon(trial, findings[-1], settings, options)
    if wanted.alone and all(finding.status == "misconfigured" for finding in findings):
        raise ConfigError(findings[0].detail)
    for name in [] if wanted.alone else backend_names():
        if name not in wanted.names and not has_client(name):
            findings.append(Finding(name, status="not installed", detail=f"pip install 'hermes-exec[{name}]'"))
        elif name not in wanted.names and needs_options(name):
            detail = f"it needs options: hermes-exec doctor -b {name} -o …"
            findings.append(Finding(name, status="not tried", detail=detail))
    if as_json:
        emit_json(findings)
    else:
        _show(findings)
    return exits.OK if any(finding.status == "ok" for finding in findings) else exits.INFRA


def _select_hosts(settings_of_it: Callable[[], dict[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the options for each host of a backend with several hosts, by the names of the hosts."""
    from hermes_exec.cli.kit.known_backends import backend_config

    try:
        return backend_config(settings_of_it()).each_host()
    except Exception:  # noqa: BLE001 -- the trial raises it too, and reports it
        return {}


async def _try(
    finding: Finding,
    settings_of_it: Callable[[], dict[str, Any]],
    more: Mapping[str, Any],
    *,
    alone: bool,
    configured: bool,
) -> None:
    try:
        settings = {**settings_of_it(), **ONE_SLOT, **more}
        with anyio.fail_after(TIME_LIMIT_S):
            async with _trial(finding, settings) as command:
                await _measure(finding, settings, command)
                exclusive = finding.isolation is not None and finding.isolation.level == "exclusive"
                finding.limits = await _probe_limits("limits" if exclusive else "slot_limits", settings)
                if exclusive:
                    async with pool_of(settings, slots_per_sandbox=2) as pool, pool.slot() as slot:
                        finding.shared = f"{slot.isolation.level}: {slot.isolation.filesystem}"
    except BackendUnavailable as error:
        finding.status, finding.detail = "unavailable", str(error)
    except ConfigError as error:
        if alone:
            for remark in finding.remarks:
                say(f"{finding.name}: {remark}")
            raise
        # For a backend without configuration, the message is about its required options.
        finding.status, finding.detail = "misconfigured" if configured else "not tried", str(error)
    except ExecError as error:
        finding.status, finding.detail = "failed", f"{type(error).__name__}: {error}"
    except TimeoutError:
        finding.status, finding.detail = "failed", f"no answer within {TIME_LIMIT_S:.0f} s"
    except Exception as error:
        if alone:
            raise
        finding.status, finding.detail = "failed", f"{type(error).__name__}: {error}"


@asynccontextmanager
async def _trial(finding: Finding, settings: dict[str, Any]) -> AsyncIterator[str | list[str]]:
    """Yield a command that does next to nothing; set a minimal image in `settings` if the backend needs one."""
    from hermes_exec.backends.capabilities import HasLeftovers, HasRemarks, HasTrialImage
    from hermes_exec.backends.registry import make_backend
    from hermes_exec.cli.kit.known_backends import backend_config
    from hermes_exec.redact import mask_raised_errors, secret_values

    chosen = backend_config(settings)
    with mask_raised_errors(secret_values(chosen)):
        backend = make_backend(chosen)
        try:
            if isinstance(backend, HasRemarks):
                finding.remarks += await backend.remarks()
            if isinstance(backend, HasLeftovers):
                finding.remarks += await backend.leftovers()
            if settings.get("image") is None and isinstance(backend, HasTrialImage):
                async with backend.trial_image() as (image, command):
                    settings["image"] = image
                    yield command
            else:
                yield "true"
        finally:
            await backend.aclose()


async def _measure(finding: Finding, settings: dict[str, Any], command: str | list[str]) -> None:
    begin = time.perf_counter()
    async with pool_of(settings) as pool, pool.slot() as slot:
        finding.launch_ms = (time.perf_counter() - begin) * 1000
        finding.isolation = slot.isolation
        begin = time.perf_counter()
        for _ in range(CALLS):
            result = await slot.run(command, timeout_s=30)
            if not result.ok:
                finding.status, finding.detail = "failed", f"a command ended with {result.exit_code}: {result.stderr}"
                return
        finding.call_ms = (time.perf_counter() - begin) * 1000 / CALLS
        finding.browser = await _probe_browser(slot)


async def _probe_browser(slot: Slot) -> str:
    from hermes_exec.tools import Toolbox
    from hermes_exec.tools.browser import playwright_driver

    if not playwright_driver.is_installed():
        return playwright_driver.MISSING_EXTRA
    async with Toolbox(slot, ["browser"], tools=["browser_close"]) as toolbox:
        result = await toolbox.call("browser_navigate", {"url": "about:blank"})
        await toolbox.call("browser_close", {})
    if result.error_kind == "no_browser":
        mend = "`hermes-exec image browser` prints the recipe of one" if slot.image else "install chromium, or Chrome"
        return f"none in {slot.image or 'PATH'}: {mend}"
    if not result.ok:
        return str(result.data["error"])
    return f"a page is open in {result.duration_s:.1f} s" + (f", in {slot.image}" if slot.image else "")


async def _probe_limits(whose: str, settings: dict[str, Any]) -> dict[str, str]:
    """Request every limit, of the sandbox or of the slot, and return how each is enforced."""
    wanted: dict[str, Any] = {whose: LIMITS, "best_effort_limits": True}
    async with pool_of(settings, **wanted) as pool, pool.slot() as slot:
        return dict(slot.isolation.limits)


def _show(findings: list[Finding]) -> None:
    rows = []
    for finding in findings:
        isolation = finding.isolation
        level = f"{isolation.level} ({isolation.price_ms:.1f} ms)" if isolation else None
        launch = None if finding.launch_ms is None else f"{finding.launch_ms:.0f}"
        call = None if finding.call_ms is None else f"{finding.call_ms:.2f}"
        rows.append((finding.name, finding.status, level, launch, call, finding.detail))
    table(("backend", "status", "isolation (price)", "launch ms", "call ms", "detail"), rows)
    for finding in findings:
        for remark in finding.remarks:
            stdout().print(f"\n{finding.name}: {printable(remark)}", markup=False)
        if finding.isolation is None:
            continue
        parts = [f"{n} {getattr(finding.isolation, n)}" for n in ("filesystem", "processes", "users", "network")]
        stdout().print(f"\n{finding.name}: " + printable("; ".join(parts)), markup=False)
        if finding.shared:
            text = f"{finding.name}: with several slots in a sandbox {finding.shared}"
            stdout().print(printable(text), markup=False)
        if finding.browser:
            stdout().print(f"{finding.name}: browser: {printable(finding.browser)}", markup=False)
        limits = "; ".join(f"{limit}: {how}" for limit, how in finding.limits.items())
        stdout().print(f"{finding.name}: limits {printable(limits) or 'none'}", markup=False)


def add_to(app: typer.Typer) -> None:
    """Add the command `doctor`."""
    app.command(epilog="Example: hermes-exec doctor --backend docker")(doctor)
