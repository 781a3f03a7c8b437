"""Chromium as a process of a slot: its location, its options, and the reason if it does not start."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes_exec.tools.call.failure import ToolFailure

if TYPE_CHECKING:
    from hermes_exec.slot.process import Process
    from hermes_exec.slot.slot import Slot

PROGRAMS = (
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "chrome-headless-shell",
    "headless_shell",
    "/ms-playwright/chromium-*/chrome-linux*/chrome",
    "/ms-playwright/chromium_headless_shell-*/chrome-linux*/headless_shell",
    "$HOME/.cache/ms-playwright/chromium-*/chrome-linux*/chrome",
)
"""The programs that may be a browser in an image; the first existing one is used. The paths are Playwright's."""

DISABLED_FEATURES = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DeferRendererTasksAfterInput",  # it delays the effects of a click until the next frame, 10 ms or more
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
    "Translate",
)
OPTIONS = (
    # The slot isolates it: Chromium's own sandbox needs rights that a slot does not have.
    "--no-sandbox",
    "--headless",
    "--remote-debugging-pipe",
    "--no-startup-window",
    # The options of Playwright: see its chromiumSwitches.ts.
    "--allow-pre-commit-input",
    "--disable-back-forward-cache",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    f"--disable-features={','.join(DISABLED_FEATURES)}",
    "--disable-field-trial-config",
    "--disable-gpu",
    "--disable-hang-monitor",
    "--disable-ipc-flooding-protection",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    "--disable-renderer-backgrounding",
    "--disable-search-engine-choice-screen",
    "--disable-sync",
    "--enable-features=CDPScreenshotNewSurface",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-service-autorun",
    "--password-store=basic",
    "--unsafely-disable-devtools-self-xss-warnings",
    "--use-mock-keychain",
)
PREFERENCES = {"plugins": {"always_open_pdf_externally": True}}
"""Preferences of the profile. PDFs are downloaded, because snapshots see nothing in their viewer, an extension."""
NO_BROWSER_EXIT_CODE = 127
_LOG_TAIL_BYTES = 2000


def command(directory: str, more: Sequence[str] = ()) -> str:
    """Return the shell command that starts the first existing browser, with its DevTools pipe as stdin and stdout.

    TMPDIR is relative: Chromium creates a socket in it, whose path may have at most 107 bytes.
    """
    options = " ".join(map(shlex.quote, [*OPTIONS, *more, f"--user-data-dir={directory}/profile"]))
    log = shlex.quote(f"{directory}/log")
    return (
        f"mkdir -p {shlex.quote(directory)} && cd {shlex.quote(directory)} && mkdir -p tmp profile/Default || exit 1\n"
        f"printf %s {shlex.quote(json.dumps(PREFERENCES))} >profile/Default/Preferences\n"
        f"export TMPDIR=tmp XDG_CONFIG_HOME={shlex.quote(f'{directory}/config')}\n"
        f"for program in {' '.join(PROGRAMS)}; do\n"
        f'    if found=$(command -v "$program"); then\n'
        f'        exec "$found" {options} 3<&0 4>&1 </dev/null >{log} 2>&1\n'
        f"    fi\n"
        f"done\n"
        f"exit {NO_BROWSER_EXIT_CODE}"
    )


async def start_failure(slot: Slot, process: Process, directory: str) -> ToolFailure:
    """Return the error for a browser that ended during its start."""
    try:
        exit_code = (await process.wait(5)).exit_code
    except TimeoutError:
        return ToolFailure("browser_failed", "The browser closed its connection and hangs.", success=False)
    if exit_code == NO_BROWSER_EXIT_CODE:
        message = "This machine has no browser (Chromium or Chrome); only its owner can add one. Use other tools."
        return ToolFailure("no_browser", message, success=False)
    try:
        log = (await slot.files.read_bytes(f"{directory}/log"))[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
    except OSError:
        log = ""
    message = f"The browser ended as it started, with exit code {exit_code}"
    return ToolFailure("browser_failed", f"{message}: {log}" if log else f"{message}.", success=False)
