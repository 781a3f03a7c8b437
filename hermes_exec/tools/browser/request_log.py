"""Requests of pages: the newest, without their headers and bodies."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus
from weakref import WeakKeyDictionary

from hermes_exec.tools.browser.downloads import MAX_URL_CHARS
from hermes_exec.tools.browser.navigation import request_frame

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Request, Response

MAX_REQUESTS = 500
MAX_ERROR_CHARS = 200
SCRIPT_TYPES = frozenset({"fetch", "xhr"})
"""Types of requests that are never static: scripts ask for data."""
HTTP_ERROR = 400


@dataclass
class LoggedRequest:
    """A request, and its outcome: a status, or the error that kept it from being answered."""

    method: str
    url: str
    kind: str
    page: Page | None
    opens_page: bool
    """Whether it asks for a new document of the tab."""
    status: int | None = None
    error: str | None = None

    @property
    def is_static(self) -> bool:
        """Whether it got a file of the page: it succeeded, and no script has asked for it."""
        return self.kind not in SCRIPT_TYPES and self.status is not None and self.status < HTTP_ERROR

    def describe(self, secrets: Collection[str]) -> dict[str, object]:
        """Return the fields for the model. Values of the query that are secret are masked."""
        fields: dict[str, object] = {"method": self.method, "url": mask_query(self.url, secrets), "type": self.kind}
        if self.error is not None:
            return {**fields, "error": self.error}
        return fields if self.status is None else {**fields, "status": self.status}


class RequestLog:
    """The newest requests of all tabs."""

    def __init__(self) -> None:
        self._requests: deque[LoggedRequest] = deque(maxlen=MAX_REQUESTS)
        self._by_request: WeakKeyDictionary[Request, LoggedRequest] = WeakKeyDictionary()

    def watch(self, context: BrowserContext) -> None:
        """Record the requests of a context's tabs from now on."""
        context.on("request", self._on_request)
        context.on("response", self._on_response)
        context.on("requestfailed", self._on_failed)

    def of_page(self, page: Page) -> list[LoggedRequest]:
        """Return the requests of a tab since it asked for its document."""
        requests = [logged for logged in self._requests if logged.page is page]
        opening = [place for place, logged in enumerate(requests) if logged.opens_page and logged.error is None]
        return requests[opening[-1] :] if opening else requests

    def _on_request(self, request: Request) -> None:
        frame = request_frame(request)
        page = frame.page if frame is not None else None
        is_top = frame is None or frame.parent_frame is None
        opens_page = request.is_navigation_request() and is_top and request.redirected_from is None
        url = request.url[:MAX_URL_CHARS]
        logged = LoggedRequest(request.method[:MAX_ERROR_CHARS], url, request.resource_type, page, opens_page)
        self._requests.append(logged)
        self._by_request[request] = logged

    def _on_response(self, response: Response) -> None:
        if (logged := self._by_request.get(response.request)) is not None:
            logged.status = response.status
            if logged.page is None and (frame := request_frame(response.request)) is not None:
                logged.page = frame.page  # a new tab had no page when it sent the request

    def _on_failed(self, request: Request) -> None:
        if (logged := self._by_request.get(request)) is not None:
            logged.error = (request.failure or "failed")[:MAX_ERROR_CHARS]


def mask_query(url: str, secrets: Collection[str]) -> str:
    """Return a URL in which the secret values of its query are masked."""
    address, mark, query = url.partition("?")
    if not (secrets and mark):
        return url
    return f"{address}?{'&'.join(_mask_field(field, secrets) for field in query.split('&'))}"


def _mask_field(field: str, secrets: Collection[str]) -> str:
    name, _, value = field.partition("=")
    return f"{name}=***" if unquote_plus(value.partition("#")[0]) in secrets else field
