"""A gateway: a port in a slot at which a harness reaches the driver's model."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskStatus

from hermes_agent.gateway.capture import Capture
from hermes_agent.gateway.journal import CallJournal
from hermes_agent.gateway.options import Gateway
from hermes_agent.gateway.server import GatewayServer
from hermes_agent.gateway.tree import Captured
from hermes_agent.models.base import Model, SessionModel
from hermes_exec import Slot, blocking
from hermes_exec.aio.tasks import DetachedTaskGroup
from hermes_exec.errors import ConfigError, ExecError, SlotClosed

logger = logging.getLogger(__name__)


class ModelGateway:
    """A port on a slot's loopback that answers model calls (OpenAI, Anthropic) and captures all answers.

    Enter it with `async with`, or with `with` for a blocking slot. It needs no network in the slot. When it is left,
    samples under way are cancelled and connections are closed. After a reset of the slot nothing is answered.

    Args:
        slot: The slot, async or blocking.
        model: The model that answers: the policy.
        gateway: Options and budgets.
        on_busy: Called with True when the first of several requests at once begins, and with False when the last ends.

    Attributes:
        key: The key that a request must have: `hx-` and random letters, new for each gateway.
        capture: The object that answers.
        journal: The outcome of the requests.
    """

    def __init__(
        self,
        slot: Slot | blocking.Slot,
        model: Model | SessionModel,
        gateway: Gateway | None = None,
        *,
        on_busy: Callable[[bool], None] | None = None,
    ) -> None:
        self._slot = slot
        options = gateway or Gateway()
        self._model_names = [name for name in options.models or () if name != "*"] or ["policy"]
        self.key = f"hx-{secrets.token_hex(16)}"
        self.capture = Capture(model, options)
        self.journal = CallJournal(self.capture, on_busy)
        self._port = 0
        self._entered = False
        self._background: DetachedTaskGroup | None = None

    @property
    def url(self) -> str:
        """The base URL, without `/v1`.

        Raises:
            RuntimeError: If the gateway was not entered.
        """
        if not self._port:
            raise RuntimeError("the gateway has no port yet: enter it first")
        return f"http://127.0.0.1:{self._port}"

    @property
    def env(self) -> dict[str, str]:
        """The variables by which harnesses find their model service."""
        openai = f"{self.url}/v1"
        return {
            "OPENAI_BASE_URL": openai,
            "OPENAI_API_BASE": openai,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": self.key,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    @property
    def captured(self) -> Captured:
        """The answers so far."""
        return self.capture.captured

    async def __aenter__(self) -> Self:
        if isinstance(self._slot, blocking.Slot):
            raise ConfigError("the slot is blocking: use `with ModelGateway(...)`")
        return await self._open(self._slot)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    def __enter__(self) -> Self:
        if not isinstance(self._slot, blocking.Slot):
            raise ConfigError("the slot is async: use `async with ModelGateway(...)`")
        slot = self._slot
        return slot.run_async(lambda: self._open(slot.wrapped))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert isinstance(self._slot, blocking.Slot)
        with suppress(SlotClosed):  # closing the pool ended the gateway
            self._slot.run_async(self._close)

    async def _open(self, slot: Slot) -> Self:
        if self._entered:
            raise RuntimeError("a gateway is entered once: make another one")
        self._entered = True
        background = DetachedTaskGroup()
        tasks = await background.start()
        self._background = background
        try:
            await tasks.start(self._serve, slot)
        except BaseException:
            await self._close()
            raise
        return self

    async def _close(self) -> None:
        if self._background is not None:
            await self._background.end()

    async def _serve(self, slot: Slot, *, task_status: TaskStatus[None]) -> None:
        """Accept connections until the slot ends or is reset."""
        server = GatewayServer(self.key, self.journal, self._model_names, on_refusal=self.journal.note_refusal)
        async with (
            slot.listen(port=0, shared_loopback=True) as listener,
            self.capture,
            anyio.create_task_group() as connections,
        ):
            self._port = listener.port
            task_status.started()
            while True:
                try:
                    connection = await listener.accept()
                except (ExecError, OSError) as error:
                    logger.debug("the gateway of slot %s ends: %s", slot.id, error)
                    return
                connections.start_soon(server.serve, connection)
