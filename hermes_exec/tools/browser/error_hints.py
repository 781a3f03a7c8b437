"""What a model is told of the errors of Playwright and Chromium."""

from __future__ import annotations

import re

HANGS = "The page does not answer: open it, or another one, anew with browser_navigate."
CRASHED = "The page crashed, perhaps for want of memory. Open it again, or another one, with browser_navigate."
WENT_ON = "The page went on to another one meanwhile: look with browser_snapshot."
OBSTACLES = r"element (is not|was detached)|intercepts pointer events|outside of the viewport"
"""What keeps Playwright from an action, as it says so in its log."""
HINTS = {
    "ERR_ABORTED": "The server gave no page for it, as with the status 204.",
    "ERR_INVALID_AUTH_CREDENTIALS": "The server asks for a user and a password: http://USER:PASSWORD@HOST/.",
    "ERR_INTERNET_DISCONNECTED": "This machine has no network: only its own servers (http://127.0.0.1:PORT) and "
    "its files (/absolute/path) can be opened.",
    "ERR_NAME_NOT_RESOLVED": "There is no host of that name.",
    "ERR_CONNECTION_REFUSED": "Nothing listens there.",
    "ERR_UNSAFE_PORT": "The browser does not open this port, which belongs to another protocol. Serve on another one.",
    "ERR_FILE_NOT_FOUND": "There is no such file on this machine.",
    "ERR_CERT_": "The certificate of the server is not believed. On the browser's own page, Advanced leads on.",
    "context was destroyed": WENT_ON,
    "by another navigation": WENT_ON,
    "Unknown key": "Names of keys are as in Enter, Tab, ArrowDown, a, Control+a.",
}
"""What parts of their messages mean, and what to do."""


def explain_error(error: Exception) -> str:
    """What Playwright says, and what it means; of its log of attempts only what the last one met."""
    from playwright.async_api import TimeoutError as PlaywrightTimeout

    text, _, log = str(error).partition("\nCall log:")
    head, _, rest = text.strip().partition(": ")
    message = rest if head.count(".") == 1 and " " not in head else text.strip()
    if isinstance(error, PlaywrightTimeout):
        obstacles = [line.strip(" -") for line in log.splitlines() if re.search(OBSTACLES, line)]
        return f"{message} {obstacles[-1] if obstacles else HANGS}"[:1000]
    hints = [hint for part, hint in HINTS.items() if part in message]
    return ". ".join([message[:1000], *hints])
