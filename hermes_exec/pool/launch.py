"""One launch: the sandbox, its channel and its setup. A launch that fails or is cancelled leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from hermes_exec.aio.tasks import PlainTaskGroup
from hermes_exec.backends.base import Labels, Sandbox
from hermes_exec.backends.capabilities import CanPrefetch
from hermes_exec.channel.trace import ChannelTrace
from hermes_exec.errors import ChannelLost, LaunchTimeout
from hermes_exec.pool.abilities import find_abilities
from hermes_exec.pool.sandbox import PooledSandbox, open_sandbox
from hermes_exec.pool.state import SandboxRecord
from hermes_exec.pool.template import Template
from hermes_exec.redact import mask_raised_errors
from hermes_exec.results import PullProgress

OnPull = Callable[[PullProgress], None]


async def launch_sandbox(
    record: SandboxRecord,
    template: Template,
    labels: Labels,
    on_pull: OnPull | None,
    destroy: Callable[[Sandbox], Awaitable[None]],
) -> Sandbox:
    """Prepare the image within `pull_timeout_s`, then launch a sandbox within `launch_timeout_s` and return it.

    An engine that pulls only at launch gets both times. If the call is cancelled, a sandbox that already exists is
    destroyed.

    Raises:
        LaunchError: As `Backend.launch`; LaunchTimeout if the time is over.
    """
    config = template.config

    def report(news: PullProgress) -> None:
        record.doing = f"the image {news.image!r} is being prepared ({news.status})"
        if on_pull is not None:
            on_pull(news)

    if isinstance(template.backend, CanPrefetch):
        record.doing = f"the image {template.image!r} is being prepared"
        with mask_raised_errors(template.secrets):
            await template.backend.prefetch(replace(template.spec(), on_progress=report))
        record.doing = ""
    last_progress: list[tuple[float, PullProgress]] = []

    def progress(news: PullProgress) -> None:
        last_progress[:] = [(time.monotonic(), news)]
        report(news)

    async def watch(scope: anyio.CancelScope) -> None:
        due = time.monotonic() + config.launch_timeout_s
        longest = due + config.pull_timeout_s
        while (left := due - time.monotonic()) > 0:
            await anyio.sleep(left)
            if last_progress:
                due = min(last_progress[0][0] + config.launch_timeout_s, longest)
        scope.cancel()

    spec = replace(template.spec(), on_progress=progress)
    sandbox: Sandbox | None = None
    try:
        async with PlainTaskGroup() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            with mask_raised_errors(template.secrets):
                sandbox = await template.backend.launch(spec, labels)
            tasks.cancel_scope.cancel()
    except BaseException:
        if sandbox is not None:
            await destroy(sandbox)
        raise
    if sandbox is not None:
        return sandbox
    doing = "".join(f": {news.image}: {news.status}" for _, news in last_progress)
    raise LaunchTimeout(f"a sandbox was not launched within {config.launch_timeout_s:g} s{doing}")


async def start_sandbox(
    record: SandboxRecord,
    template: Template,
    sandbox: Sandbox,
    serve: Callable[[Callable[[], Awaitable[None]]], None],
    destroy: Callable[[Sandbox], Awaitable[None]],
    trace: ChannelTrace | None = None,
) -> PooledSandbox:
    """Open the channel into a launched sandbox, run its setup, create its first slot, and examine it if requested.

    `serve` runs the channel in the background. If anything fails, or the call is cancelled, the sandbox is destroyed.
    """
    pooled: PooledSandbox | None = None
    try:
        pooled = await open_sandbox(record, template, sandbox, trace)
        serve(pooled.channel.run)
        await pooled.set_up()
        examination = template.examination
        if examination.is_requested and examination.abilities is None:
            examination.abilities = await find_abilities(pooled)
    except BaseException:
        if pooled is not None:
            pooled.channel.fail(ChannelLost("the launch was given up", sandbox=sandbox.id))
        await destroy(sandbox)
        raise
    return pooled
