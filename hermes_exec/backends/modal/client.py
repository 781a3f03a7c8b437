"""Modal behind its own client: calls in an event loop of their own, foreign errors mapped where they enter.

The client works on asyncio alone. A loop in a thread serves drivers on trio and blocking ones as well, and goes on with
what has to be finished when a caller is cancelled.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import start_blocking_portal

from hermes_exec.backends.engine_errors import away_for_now
from hermes_exec.errors import (
    BackendUnavailable,
    ConfigError,
    ErrorCause,
    ExecError,
    ImageError,
    LaunchError,
    QuotaExceeded,
)

if TYPE_CHECKING:
    import modal
    from anyio.from_thread import BlockingPortal

T = TypeVar("T")
ANSWER_S = 30.0
"""Longest wait for what Modal answers at once. The client itself tries again for up to a minute."""
INSTALL = "pip install -U 'hermes-exec[modal]'"
TOKEN = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"


class Client:
    """The client of one backend, imported at first use; what `call` is given runs in its event loop."""

    def __init__(self, app_name: str, environment: str | None) -> None:
        self._app_name = app_name
        self._environment = environment
        self._lock = threading.Lock()
        self._open: AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal | None = None
        self._app: modal.App | None = None

    async def call(self, work: Callable[[], Awaitable[T]], within_s: float | None = ANSWER_S) -> T:
        """Do something with the client. Cancelled here, it is cancelled there, and its end is waited for.

        Raises:
            ExecError: as ``mapped``; BackendUnavailable also when there is no answer within `within_s`.
        """
        portal = await anyio.to_thread.run_sync(self._ready)
        with mapped():
            with anyio.move_on_after(within_s):
                return await portal.call_async(work)
            import modal

            told = f"Modal did not answer within {within_s:g} s at {modal.config.config['server_url']}"
            raise away_for_now(BackendUnavailable(f"{told}: is there a network, and MODAL_SERVER_URL right?"))

    def call_now(self, work: Callable[[], Awaitable[T]], within_s: float) -> T:
        """The same in this thread."""
        portal = self._ready()
        with mapped():
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
                        raise ConfigError(f"the {name} of Modal has a line break, or letters that none has: {TOKEN}")
                # At DEBUG the client's HTTP/2 logs all headers, Modal's token among them. Who sets this level has them.
                if (headers := logging.getLogger("hpack")).level == logging.NOTSET:
                    headers.setLevel(logging.INFO)
                self._open = start_blocking_portal("asyncio", name="hermes-exec-modal")
                self._portal = self._open.__enter__()
            return self._portal

    async def hello(self) -> None:
        """Find out whether Modal lets us in."""
        import modal

        client = await modal.Client.from_env.aio()
        await client.hello.aio()  # type: ignore[no-untyped-call]

    async def app(self, *, make: bool = True) -> modal.App | None:
        """The app of the sandboxes; None where there is none and none is to be made."""
        import modal

        if self._app is None:
            with contextlib.nullcontext() if make else contextlib.suppress(modal.exception.NotFoundError):
                self._app = await modal.App.lookup.aio(
                    self._app_name, create_if_missing=make, environment_name=self._environment
                )
        return self._app

    def close(self) -> None:
        """End the event loop, with all that goes on in it; blocking. The client itself is the whole program's."""
        with self._lock:
            entered, portal, self._open, self._portal = self._open, self._portal, None, None
        if entered is not None and portal is not None:
            portal.call(portal.stop, True)
            entered.__exit__(None, None, None)


@contextmanager
def mapped() -> Iterator[None]:
    """Turns errors of the client into errors of this library, with Modal's own text.

    Raises:
        BackendUnavailable: Modal does not let us in, or does not know this version of its client.
        QuotaExceeded: there is no room for one more, or too many requests were made.
        ImageError: an image was not built.
        ConfigError: what was asked for is wrong, or names what is not there (a secret, a volume, an environment), or a
            setting of the client is wrong.
        LaunchError: everything else; another try may succeed.
    """
    from grpclib.exceptions import StreamTerminatedError
    from modal import exception as told

    try:
        yield
    except ExecError:
        raise
    except (told.AuthError, told.PermissionDeniedError) as error:
        raise BackendUnavailable(f"Modal does not let us in ({error}): {TOKEN}") from error
    except told.VersionError as error:
        raise BackendUnavailable(f"Modal does not know this version of its client ({error}): {INSTALL}") from error
    except told.ResourceExhaustedError as error:
        raise QuotaExceeded(f"Modal has no room for it: {error}") from error
    except told.ImageBuildError as error:
        raise ImageError(f"Modal cannot build the image: {error}") from error
    except told.ConflictError as error:
        raise LaunchError(f"Modal refuses: {error}") from error
    except (told.InvalidError, told.NotFoundError, ValueError) as error:
        raise ConfigError(f"Modal refuses what was asked for: {error}") from error
    except (TimeoutError, told.Error, StreamTerminatedError, OSError, CancelledError) as error:
        why = f"{type(error).__name__}: {error}".rstrip(": ")
        raise LaunchError(f"Modal: {why}", cause=ErrorCause.PROVIDER) from error
