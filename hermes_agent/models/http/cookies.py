"""Cookies of a server, which load balancers and gateways set."""

from __future__ import annotations

from collections.abc import Sequence
from email.message import Message
from http.cookiejar import CookieJar
from urllib.request import Request


class Cookies:
    """The cookies that one client received."""

    def __init__(self) -> None:
        self._jar: CookieJar | None = None

    def header(self, url: str) -> str | None:
        """Return the value of the header `Cookie` of a request. None: there are no cookies for it."""
        if self._jar is None:
            return None
        request = Request(url)
        self._jar.add_cookie_header(request)
        return request.get_header("Cookie")

    def add(self, url: str, values: Sequence[str]) -> None:
        """Add cookies from the headers `Set-Cookie` of an answer."""
        if not values:
            return
        if self._jar is None:
            self._jar = CookieJar()
        headers = Message()
        for value in values:
            headers["Set-Cookie"] = value
        self._jar.extract_cookies(_Headers(headers), Request(url))  # type: ignore[arg-type]


class _Headers:
    """The part of an answer that a CookieJar reads."""

    def __init__(self, headers: Message) -> None:
        self._headers = headers

    def info(self) -> Message:
        return self._headers
