"""Serving clients over streamable HTTP: the address, the token, origins, and the names of slots."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from hermes_exec.errors import ConfigError
from hermes_mcp.server import SESSION_HEADER, SLOT_HEADER, SlotServer, key_of_headers

if TYPE_CHECKING:
    from starlette.datastructures import MutableHeaders
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/mcp"
SHUTDOWN_S = 2
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")


@dataclass(frozen=True)
class HttpOptions:
    """An address, and who may use it.

    Args:
        address: `HOST:PORT`.
        token: The bearer token that each request needs; None for no token, on loopback only.
        origins: Allowed values of the header `Origin`, which browsers send. On loopback, origins of this machine are
            allowed too.

    Raises:
        ConfigError: If the address is invalid, or is not loopback and there is no token.
    """

    address: str
    token: str | None = None
    origins: Sequence[str] = ()
    host: str = field(init=False)
    port: int = field(init=False)
    is_loopback: bool = field(init=False)

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"the address {self.address!r} is not HOST:PORT, such as 127.0.0.1:8000")
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "port", int(port))
        object.__setattr__(self, "is_loopback", _is_loopback(host))
        if not self.is_loopback and not self.token:
            raise ConfigError(
                f"{host} can be reached from other machines, so a token is required: set HERMES_MCP_TOKEN, "
                "for example to the output of `openssl rand -hex 32`, or listen on 127.0.0.1"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_http(server: SlotServer, options: HttpOptions, on_ready: Callable[[str], object]) -> None:
    """Serve clients until cancelled. `on_ready` receives the URL.

    Raises:
        ConfigError: If the address cannot be used.
    """
    import uvicorn

    class Uvicorn(uvicorn.Server):
        """A server that leaves the handlers of signals alone."""

        def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override, unused-ignore]
            return contextlib.nullcontext()

    with _listen(options) as listener:
        config = uvicorn.Config(
            build_app(server, options),
            log_config=None,
            access_log=False,
            ws="none",
            lifespan="on",
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        web = Uvicorn(config)
        async with server.running(), anyio.create_task_group() as tasks:
            tasks.start_soon(_serve_shielded, web, listener)
            host = f"[{options.host}]" if ":" in options.host else options.host
            on_ready(f"http://{host}:{listener.getsockname()[1]}{PATH}")
            try:
                await anyio.sleep_forever()
            finally:
                # Requests that are open after SHUTDOWN_S are cancelled. uvicorn would log a traceback for each.
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                web.should_exit = True


async def _serve_shielded(web: Any, listener: socket.socket) -> None:  # noqa: ANN401 - a subclass of uvicorn.Server
    with anyio.CancelScope(shield=True):
        await web.serve(sockets=[listener])


def _listen(options: HttpOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigError(f"cannot listen on {options.address}: {reason}; choose another address") from error


def build_app(server: SlotServer, options: HttpOptions) -> ASGIApp:
    """Return the ASGI application."""
    from mcp.server.transport_security import TransportSecuritySettings

    app = server.mcp.streamable_http_app(
        streamable_http_path=PATH,
        session_idle_timeout=server.slots.idle_timeout_s,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # RequestGuard checks it
    )
    return RequestGuard(app, server, options)


class RequestGuard:
    """Refuses requests without the token or from other origins, and keeps the slots of open requests."""

    def __init__(self, app: ASGIApp, server: SlotServer, options: HttpOptions) -> None:
        self._app, self._server, self._options = app, server, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from starlette.datastructures import MutableHeaders

        headers = MutableHeaders(scope=scope)
        if refuse := self._find_refusal(headers) or _name_slot(scope, headers):
            await refuse(scope, receive, send)
            return
        slots, key, session = self._server.slots, key_of_headers(headers), headers.get(SESSION_HEADER)
        if key is None:
            await self._app(scope, receive, send)
        elif scope["method"] == "DELETE" and session is None:
            await slots.drop(key)
            await _respond(200, "The slot is released")(scope, receive, send)
        else:
            with slots.in_use(key):
                await self._app(scope, receive, send)
            if scope["method"] == "DELETE":
                await slots.drop(f"session {session}")

    def _find_refusal(self, headers: MutableHeaders) -> Callable[..., Awaitable[None]] | None:
        options, origin = self._options, headers.get("origin")
        if options.token is not None:
            authorization = headers.get("authorization", "").encode()
            if not hmac.compare_digest(authorization, f"Bearer {options.token}".encode()):
                return _respond(401, "The token is missing or wrong: send Authorization: Bearer TOKEN", "Bearer")
        elif not _LOCAL_HOST.fullmatch(headers.get("host", "")):
            return _respond(403, "The header Host does not name this machine")
        if origin is None or origin in options.origins or (options.is_loopback and _LOCAL_ORIGIN.fullmatch(origin)):
            return None
        return _respond(403, f"The origin {origin} is not allowed: start the server with --allow-origin {origin}")


def _name_slot(scope: Scope, headers: MutableHeaders) -> Callable[..., Awaitable[None]] | None:
    """Turn the path `/mcp/NAME` into the header of the name, and return a refusal if the name is invalid."""
    path: str = scope["path"]
    if path.startswith(f"{PATH}/"):
        headers[SLOT_HEADER] = path.removeprefix(f"{PATH}/")
        scope["path"], scope["raw_path"] = PATH, PATH.encode()
    name = headers.get(SLOT_HEADER)
    if name is not None and not _NAME.fullmatch(name):
        return _respond(400, "The name of a slot has 1 to 64 letters, digits, dots, hyphens or underscores")
    return None


def _respond(status: int, text: str, challenge: str | None = None) -> Callable[..., Awaitable[None]]:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status, {"WWW-Authenticate": challenge} if challenge else None)
