"""Modal's client library: calls in an event loop of their own, errors translated at this boundary.

The library works on asyncio alone. A loop in a thread also serves drivers on trio and blocking ones, and finishes
cleanup after a caller is cancelled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import start_blocking_portal

from hermes_exec.backends.engine_errors import temporarily_unavailable
from hermes_exec.backends.modal.config import INSTALL, TOKEN
from hermes_exec.errors import BackendUnavailable, ConfigError

if TYPE_CHECKING:
    import modal
    from anyio.from_thread import BlockingPortal

T = TypeVar("T")
ANSWER_S = 30.0
"""Longest wait for a quick answer of Modal. The client itself retries for up to a minute."""


class ModalClient:
    """The client of one backend, imported at first use. `call` runs work in its event loop."""

    def __init__(self, app_name: str, environment: str | None) -> None:
        self._app_name = app_name
        self._environment = environment
        self._lock = threading.Lock()
        self._open: AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal | None = None
        self._app: modal.App | None = None

    async def call(self, work: Callable[[], Awaitable[T]], within_s: float | None = ANSWER_S) -> T:
        """Run work with the client. A cancelled caller cancels the work and waits for its end.

        Raises:
            ExecError: Like `translate_errors`. BackendUnavailable also if there is no answer within `within_s`.
        """
        portal = await anyio.to_thread.run_sync(self._ready)
        from hermes_exec.backends.modal.errors import translate_errors

        with translate_errors(), anyio.move_on_after(within_s):
            return await portal.call_async(work)
        import modal

        url = modal.config.config["server_url"]
        raise temporarily_unavailable(
            f"Modal did not answer within {within_s:g} s at {url}: is there a network, and MODAL_SERVER_URL right?"
        )

    def call_now(self, work: Callable[[], Awaitable[T]], within_s: float) -> T:
        """Run work like `call`, in this thread."""
        portal = self._ready()
        from hermes_exec.backends.modal.errors import translate_errors

        with translate_errors():
            return portal.start_task_soon(work).result(within_s)

    def _ready(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                try:
                    import modal  # takes a second
                except ImportError as error:
                    raise BackendUnavailable(f"the client of Modal is not installed: {INSTALL}") from error
                except Exception as error:
                    raise ConfigError(f"the client of Modal does not take its settings ({error}): {TOKEN}") from error
                for name in ("token_id", "token_secret"):
                    value = str(modal.config.config.get(name) or "")
                    if not value.isascii() or not value.isprintable() or value != value.strip():
                        raise ConfigError(f"the {name} of Modal has a line break or an invalid character: {TOKEN}")
                # At DEBUG, the HTTP/2 library logs all headers with Modal's token. Only an explicit level enables that.
                headers = logging.getLogger("hpack")
                if headers.level == logging.NOTSET:
                    headers.setLevel(logging.INFO)
                self._open = start_blocking_portal("asyncio", name="hermes-exec-modal")
                self._portal = self._open.__enter__()
            return self._portal

    async def hello(self) -> None:
        """Check that Modal accepts the credentials."""
        import modal

        client = await modal.Client.from_env.aio()
        await client.hello.aio()  # type: ignore[no-untyped-call]

    async def app(self, *, make: bool = True) -> modal.App | None:
        """Return the app of the sandboxes; None if it is missing and `make` is False."""
        import modal

        if self._app is None:
            try:
                self._app = await modal.App.lookup.aio(
                    self._app_name, create_if_missing=make, environment_name=self._environment
                )
            except modal.exception.NotFoundError:
                if make:
                    raise
        return self._app

    def close(self) -> None:
        """End the event loop and all work in it; blocking. Other parts of the program share the client itself."""
        with self._lock:
            entered, portal, self._open, self._portal = self._open, self._portal, None, None
        if entered is not None and portal is not None:
            portal.call(portal.stop, True)
            entered.__exit__(None, None, None)
