"""What slots of a template can have: asked of its backend, and tried in one of its sandboxes."""

from __future__ import annotations

from dataclasses import replace

from hermes_exec.config import Limits
from hermes_exec.config.limits import PER_PROCESS
from hermes_exec.errors import ConfigError, IsolationError
from hermes_exec.pool.sandbox import PooledSandbox
from hermes_exec.pool.template import Template, gpus_of
from hermes_exec.redact import mask_raised_errors
from hermes_exec.results import Abilities

SLOT_TRIAL = Limits(cpus=0.01, memory_mb=1, pids=1, disk_mb=64, open_files=1, file_size_mb=1, cpu_time_s=1)
"""Limits that fit below all limits of a sandbox. Nothing is started with them."""
SANDBOX_TRIAL = Limits(cpus=1, memory_mb=1024, pids=1024, disk_mb=1024)


async def find_abilities(sandbox: PooledSandbox) -> Abilities:
    """Return the abilities of the slots of a sandbox's template. Raises as `SandboxPool.acquire`."""
    template = sandbox.template
    facts = await sandbox.try_slot(limits=SLOT_TRIAL.to_dict(), best_effort_limits=True, default_limits=[])
    ways = facts.isolation.limits
    slot_limits = frozenset(name for name, how in ways.items() if not how.startswith(("not enforced", "watchdog")))
    sandbox_limits = slot_limits.intersection(PER_PROCESS)
    for name, value in SANDBOX_TRIAL.to_dict().items():
        wanted = {"limits": Limits(**{name: value}), "default_limits": frozenset(), "best_effort_limits": False}
        if await _is_accepted(template, **wanted):
            sandbox_limits |= {name}
    own_root = template.exclusive or template.own_roots.enabled
    return Abilities(
        isolation=facts.isolation.level,
        slot_limits=slot_limits,
        sandbox_limits=sandbox_limits,
        users=own_root and sandbox.has_users,
        network_off=not template.config.network or await _can_be_offline(sandbox),
        own_root=own_root,
        gpus=gpus_of(template.backend) is not None or bool(getattr(template.backend_config, "gpus", None)),
    )


async def _is_accepted(template: Template, **changes: object) -> bool:
    """Ask the backend whether it would launch such sandboxes with these requirements."""
    try:
        with mask_raised_errors(template.secrets):
            await template.backend.check(replace(template.spec(), **changes))  # type: ignore[arg-type]
    except ConfigError:
        return False
    return True


async def _can_be_offline(sandbox: PooledSandbox) -> bool:
    try:
        await sandbox.try_slot(network=False)
    except IsolationError:
        return False
    return await _is_accepted(sandbox.template, network=False)
