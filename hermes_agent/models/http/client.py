"""POST requests to one server and their answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from functools import lru_cache
from importlib.metadata import version
from typing import NamedTuple, cast
from urllib.parse import quote, urljoin, urlsplit

import httpcore2

from hermes_agent.models.http.connections import Connections, Server
from hermes_agent.models.http.cookies import Cookies
from hermes_agent.models.http.encodings import BadBody, accepted_encodings, make_decoder
from hermes_agent.models.http.environment import environment_headers
from hermes_agent.models.http.sockets import SocketStream

_MOST_REDIRECTS = 20
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_TARGET_CHARACTERS = "/%:@!$&'()*+,;=~?[]"
_REDIRECT_BYTES = 64 << 10

HTTP_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.ProxyError,
    httpcore2.TimeoutException,
)
"""The errors of a request that has no whole answer."""

Headers = list[tuple[bytes, bytes]]


class _Url(NamedTuple):
    """A URL without fragment and login. `authority` is its host and port for the header `Host`."""

    text: str
    server: Server
    authority: bytes
    raw: httpcore2.URL


class HTTPAnswer:
    """The answer to a request. `headers` have names in lower case; the body is read piece by piece."""

    def __init__(
        self,
        response: httpcore2.Response,
        connection: httpcore2.AsyncConnectionInterface,
        connections: Connections,
        server: Server,
    ) -> None:
        self.status = response.status
        self.reason = cast(bytes, response.extensions.get("reason_phrase", b"")).decode("latin-1")
        self.headers: dict[str, str] = {}
        self.set_cookies: list[str] = []
        for raw_name, raw_value in response.headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            if name == "set-cookie":
                self.set_cookies.append(value)
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self._response, self._connection, self._connections, self._server = response, connection, connections, server

    def collect(self, seconds: float) -> None:
        """Let pieces that arrive one by one wait so long for more, to be read at once.

        A body of a stated length does not wait: it comes as a whole, and nothing else says where it ends.
        """
        if "content-length" in self.headers:
            return
        stream = self._response.extensions.get("network_stream")
        if isinstance(stream, SocketStream):
            stream.collect(seconds)

    async def pieces(self, most_bytes: int) -> AsyncGenerator[bytes]:
        """Yield the pieces of the body, decompressed.

        Raises:
            BadBody: If it cannot be decompressed, or has more bytes.
        """
        decode = make_decoder(self.headers.get("content-encoding", ""))
        stream, size = aiter(cast(AsyncIterable[bytes], self._response.stream)), 0
        # A generator that an error leaves is closed here, and not at garbage collection.
        async with aclosing(cast(AsyncGenerator[bytes], stream)) as raw:
            async for piece in raw:
                for part in (piece,) if decode is None else decode(piece):
                    size += len(part)
                    if size > most_bytes:
                        raise BadBody(f"it is larger than {most_bytes:,} bytes")
                    yield part

    async def read_some(self, most_bytes: int) -> bytes:
        """Return the body, or the part of it that can be read."""
        content = bytearray()
        with suppress(BadBody, *HTTP_ERRORS):
            async with aclosing(self.pieces(most_bytes)) as pieces:
                async for piece in pieces:
                    content += piece
        return bytes(content)

    async def aclose(self) -> None:
        """Free the connection. It is closed if the body was not read to its end."""
        self.collect(0.0)
        try:
            await self._response.aclose()
        finally:
            await self._connections.release(self._server, self._connection)


class HttpClient:
    """Sends requests to one server and follows its redirects. It belongs to one event loop.

    Args:
        base_url: The URL that paths are appended to.
        authorization: The value of the header `Authorization`. "": none.
        connect_timeout_s: Longest connection attempt, TLS included. Requests have no other time limit.
    """

    def __init__(self, base_url: str, *, authorization: str, connect_timeout_s: float) -> None:
        self._base_url = base_url.rstrip("/")
        self._timeouts = {"connect": connect_timeout_s}
        self._connections, self._cookies = Connections(), Cookies()
        headers = {
            "accept": "application/json",
            "accept-encoding": accepted_encodings(),
            "user-agent": f"hermes-exec/{version('hermes-exec')}",
            "authorization": authorization,
        }
        headers |= {name.lower(): value for name, value in environment_headers().items()}
        encoded = [(name.title().encode(), value.encode()) for name, value in headers.items() if value]
        self._headers: Headers = [each for each in encoded if each[0] != b"Authorization"]
        self._authorization: Headers = [each for each in encoded if each[0] == b"Authorization"]

    async def post(self, path: str, content: bytes) -> HTTPAnswer:
        """Send JSON to a path (a URL, or relative to `base_url`) and return the answer. The caller closes it.

        Redirects are followed as browsers do: 307 and 308 repeat the request, the others become a GET. Another server
        gets no key.

        Raises:
            UnusableEnvironment: If the environment names an unusable proxy or certificate.
            httpcore2 errors: `HTTP_ERRORS`, if there is no answer.
        """
        url = first = _parse_url(path if "://" in path else f"{self._base_url}/{path.lstrip('/')}")
        method, body = b"POST", content
        for _ in range(_MOST_REDIRECTS + 1):
            own = url.server == first.server or _is_upgrade(first.server, url.server)
            answer = await self._send(method, url, body, self._authorization if own else [])
            location = answer.headers.get("location") if answer.status in _REDIRECTS else None
            if location is None:
                return answer
            try:
                await answer.read_some(_REDIRECT_BYTES)
            finally:
                await answer.aclose()
            url = _follow(url, location)
            if answer.status < 307:
                method, body = b"GET", b""
        raise httpcore2.RemoteProtocolError(f"it redirects more than {_MOST_REDIRECTS} times")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()

    async def _send(self, method: bytes, url: _Url, content: bytes, authorization: Headers) -> HTTPAnswer:
        headers = [(b"Host", url.authority), *self._headers, *authorization]
        if method == b"POST":
            headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(content))]
        if cookie := self._cookies.header(url.text):
            headers.append((b"Cookie", cookie.encode("latin-1", "replace")))
        timeouts = {"timeout": self._timeouts}
        request = httpcore2.Request(method, url.raw, headers=headers, content=content, extensions=timeouts)
        connection = await self._connections.acquire(url.server)
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await self._connections.release(url.server, connection)
            raise
        answer = HTTPAnswer(response, connection, self._connections, url.server)
        self._cookies.add(url.text, answer.set_cookies)
        return answer


@lru_cache(64)
def _parse_url(url: str) -> _Url:
    """Return the parts of a URL. Raise ValueError for one that is not of HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not a URL of HTTP")
    default = _DEFAULT_PORTS[parts.scheme]
    host, port = parts.hostname.encode("idna"), parts.port or default
    name = b"[%b]" % host if b":" in host else host
    authority = name if port == default else b"%b:%d" % (name, port)
    target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_TARGET_CHARACTERS)
    return _Url(
        f"{parts.scheme}://{authority.decode()}{target}",
        Server(parts.scheme, host.decode(), port),
        authority,
        httpcore2.URL(scheme=parts.scheme, host=host, port=port, target=target),
    )


def _follow(url: _Url, location: str) -> _Url:
    try:
        return _parse_url(urljoin(url.text, location))
    except ValueError as error:
        raise httpcore2.RemoteProtocolError(f"it redirects to {location!r:.200}") from error


def _is_upgrade(before: Server, after: Server) -> bool:
    """Return whether a redirect leads to the same host with encryption."""
    return before[:2] == ("http", after.host) and before.port == 80 and after == ("https", after.host, 443)
