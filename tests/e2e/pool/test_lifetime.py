"""The pool acquires no slot of a sandbox that its engine ends soon."""

from __future__ import annotations

import time

import pytest

from hermes_exec import LocalConfig, SandboxPool
from hermes_exec.backends.base import Backend, Labels, LaunchSpec, Sandbox
from hermes_exec.pool import plan

pytestmark = pytest.mark.anyio


class MortalSandbox:
    """A local sandbox of which its engine says that it lives for so long."""

    def __init__(self, inner: Sandbox, lives_s: float) -> None:
        self._inner = inner
        self.ends_at = time.monotonic() + lives_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class MortalBackend:
    """Local sandboxes that live for so long each."""

    def __init__(self, inner: Backend, lives_s: list[float]) -> None:
        self._inner, self._lives_s = inner, lives_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def launch(self, spec: LaunchSpec, labels: Labels) -> MortalSandbox:
        assert spec.lifetime_s == 500
        return MortalSandbox(await self._inner.launch(spec, labels), self._lives_s.pop(0))


async def test_a_sandbox_close_to_its_end_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LocalConfig().with_wrapper(lambda inner: MortalBackend(inner, [1e4, 1e6]))
    async with SandboxPool(config, max_lifetime_s=500) as pool:
        async with pool.slot() as slot:
            first = slot.sandbox
        monkeypatch.setattr(plan, "DRAIN_BEFORE_END_S", 1e5)
        async with pool.slot() as slot:
            assert slot.sandbox != first
            assert (await slot.run("echo here")).stdout == "here\n"
