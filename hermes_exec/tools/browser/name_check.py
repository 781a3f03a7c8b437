"""Refusal of pages' requests for host names with private addresses, before the requests are sent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio

from hermes_exec.errors import ExecError
from hermes_exec.tools.browser.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

    from hermes_exec.slot.slot import Slot

LOOK_UP = ("getent", "ahosts")
LOOK_UP_S = 3.0
"""The time limit of a lookup. After it, the request is sent, and its response is checked instead."""
FRESH_S = 30.0
MAX_NAMES = 1000
MAX_LOOK_UPS = 4
PATTERNS = [{"urlPattern": f"{scheme}://*"} for scheme in ("http", "https")]


class NameCheck:
    """Looks up the host names of requests in the slot, if private addresses are refused.

    `on_refused` is called with the URL of a page or frame that is refused, and the reason.
    """

    def __init__(self, slot: Slot, on_refused: Callable[[str, str], None]) -> None:
        self._slot, self._rules, self._on_refused = slot, slot.browser_rules, on_refused
        self._refusals: dict[str, tuple[float, str | None]] = {}
        self._look_ups = BackgroundTasks()
        self._turns = anyio.Semaphore(MAX_LOOK_UPS)

    async def watch(self, session: CDPSession) -> None:
        """Make the browser hold each request until it is checked; `session` is a session with the browser."""
        if self._slot.network and not self._rules.allow_private:
            session.on("Fetch.requestPaused", lambda event: self._look_ups.start(partial(self._decide, session, event)))
            await session.send("Fetch.enable", {"patterns": PATTERNS})

    def close(self) -> None:
        """Cancel running lookups."""
        self._look_ups.cancel()

    async def _decide(self, session: CDPSession, event: dict[str, Any]) -> None:
        url = event["request"]["url"]
        reason = await self._refusal((urlsplit(url).hostname or "").rstrip(".").lower())
        if reason is None:
            await session.send("Fetch.continueRequest", {"requestId": event["requestId"]})
            return
        if event.get("resourceType") == "Document":
            self._on_refused(url, reason)
        await session.send("Fetch.failRequest", {"requestId": event["requestId"], "errorReason": "BlockedByClient"})

    async def _refusal(self, host: str) -> str | None:
        """Return the reason why a host may not be requested, as part of a sentence; None if it may, or is unknown."""
        now = anyio.current_time()
        async with self._turns:
            seen_at, reason = self._refusals.get(host, (-FRESH_S, None))
            if now - seen_at >= FRESH_S:
                network = {"network": self._slot.network, "own_loopback": self._slot.own_loopback}
                refusals = (
                    self._rules.address_refusal(host, address, **network) for address in await self._addresses(host)
                )
                reason = next(filter(None, refusals), None)
                if len(self._refusals) >= MAX_NAMES:
                    self._refusals.clear()
                self._refusals[host] = now, reason
        return reason

    async def _addresses(self, host: str) -> list[str]:
        is_address = ":" in host or host.rpartition(".")[2].isdecimal()  # the browser's own rules handle addresses
        if not host or is_address or host.startswith("-") or host in self._rules.allow_hosts:
            return []
        try:
            result = await self._slot.run([*LOOK_UP, host], timeout_s=LOOK_UP_S, output_limit_bytes=1 << 14)
        except (ExecError, OSError):
            return []
        return [line.split()[0] for line in result.stdout.splitlines() if line.strip()] if result.ok else []
