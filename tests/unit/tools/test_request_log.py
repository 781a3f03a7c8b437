"""What is shown of requests: the outcome, and no secret value of a query."""

from __future__ import annotations

import pytest

from hermes_exec.tools.browser.request_log import LoggedRequest, mask_query

SECRETS = {"top secret+", "päß"}


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("http://a/?p=top+secret%2B&q=1", "http://a/?p=***&q=1"),
        ("http://a/?p=top%20secret%2B#end", "http://a/?p=***"),
        ("http://a/?p=p%C3%A4%C3%9F", "http://a/?p=***"),
        ("http://a/?p=top", "http://a/?p=top"),
        ("http://a/top+secret%2B", "http://a/top+secret%2B"),
        ("http://a/?", "http://a/?"),
    ],
)
def test_query_hides_secret_values(url: str, masked: str) -> None:
    assert mask_query(url, SECRETS) == masked
    assert mask_query(url, ()) == url


@pytest.mark.parametrize(
    ("kind", "status", "is_static"),
    [("image", 200, True), ("document", 304, True), ("image", 404, False), ("image", None, False), ("xhr", 200, False)],
)
def test_request_is_static_if_it_got_a_file(kind: str, status: int | None, is_static: bool) -> None:
    request = LoggedRequest("GET", "http://a/", kind, None, opens_page=False, status=status)
    assert request.is_static is is_static
