"""Explanations for the model of errors from Playwright and Chromium."""

from __future__ import annotations

import re

PAGE_HANGS = "The page does not respond: open it again, or another one, with browser_navigate."
PAGE_CRASHED = "The page crashed, perhaps from lack of memory. Open it again, or another one, with browser_navigate."
PAGE_NAVIGATED = "The tab meanwhile navigated to another page: check with browser_snapshot."
OBSTACLES = r"element (is not|was detached)|intercepts pointer events|outside of the viewport"
"""Lines of Playwright's log that name an obstacle to an action."""
HINTS = {
    "ERR_ABORTED": "The server returned no page, as with the status 204.",
    "ERR_INVALID_AUTH_CREDENTIALS": "The server asks for a user and a password: http://USER:PASSWORD@HOST/.",
    "ERR_INTERNET_DISCONNECTED": "This machine has no network: only its own servers (http://127.0.0.1:PORT) and "
    "its files (/absolute/path) can be opened.",
    "ERR_NAME_NOT_RESOLVED": "No host has that name.",
    "ERR_CONNECTION_REFUSED": "Nothing listens there.",
    "ERR_UNSAFE_PORT": "The browser does not open this port, which belongs to another protocol. Serve on another port.",
    "ERR_FILE_NOT_FOUND": "There is no such file on this machine.",
    "ERR_CERT_": "The certificate of the server is not trusted. To continue anyway, use Advanced on the page.",
    "context was destroyed": PAGE_NAVIGATED,
    "by another navigation": PAGE_NAVIGATED,
    "Unknown key": "Names of keys are like Enter, Tab, ArrowDown, a, Control+a.",
}
"""Parts of error messages, with their meaning and the next step."""


def explain_error(error: Exception) -> str:
    """Return Playwright's message with a hint. Of its log of attempts, only the last obstacle is included."""
    from playwright.async_api import TimeoutError as PlaywrightTimeout

    text, _, log = str(error).partition("\nCall log:")
    head, _, rest = text.strip().partition(": ")
    message = rest if head.count(".") == 1 and " " not in head else text.strip()
    if isinstance(error, PlaywrightTimeout):
        obstacles = [line.strip(" -") for line in log.splitlines() if re.search(OBSTACLES, line)]
        return f"{message} {obstacles[-1] if obstacles else PAGE_HANGS}"[:1000]
    hints = [hint for part, hint in HINTS.items() if part in message]
    return ". ".join([message[:1000], *hints])
