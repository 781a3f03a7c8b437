"""Translation of the engine's messages about a sandbox that did not start, and about an image that was not built."""

from __future__ import annotations

import re
from functools import partial
from typing import Literal

from hermes_exec.backends.engine_errors import ErrorRow, translate
from hermes_exec.backends.image_errors import build_error, fetch_error
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError, ImageError, LaunchError, QuotaExceeded

RefusedFeature = Literal["overlay", "limits"]
"""Features that some hosts refuse and a sandbox can do without: changes of the image on disk, limits of the sandbox."""
WORDS = re.compile(r"^(?:\x1b\[\d*m)*(?:FATAL|ERROR)\s*:\s*(.*)", re.MULTILINE)


class RefusedError(LaunchError):
    """Raised when a sandbox did not start because of an optional feature; `error` is for callers that require it."""

    def __init__(self, refused: RefusedFeature, message: str) -> None:
        self.refused = refused
        self.error = ConfigError(message)
        super().__init__(message, cause=self.error.cause, retryable=False)


ROWS = (
    ErrorRow(ConfigError, "{reason}", "mounted noexec"),
    ErrorRow(QuotaExceeded, "there is no room for another sandbox: {reason}", "(?i)no space left|disk quota"),
    ErrorRow(  # temporary: it proves nothing about the host
        LaunchError,
        "the sandbox did not start this time: {reason}",
        "(?i)timed out|timeout|deadline exceeded|temporarily unavailable|cannot allocate memory",
    ),
    ErrorRow(
        ImageError,
        "this user cannot mount the file of the image here ({reason}): give access to /dev/fuse and install "
        "squashfuse, or name the image as a directory (apptainer build --sandbox DIR IMAGE)",
        "(?i)squashfuse|/dev/fuse|fuse2fs|failed to mount squashfs|mount.*squashfs|no loop device",
    ),
    ErrorRow(
        partial(RefusedError, "limits"),
        "limits of a sandbox cannot be set by this user here: use slot_limits, or best_effort_limits=True ({reason})",
        "(?i)cgroup|dbus",
    ),
    ErrorRow(
        partial(RefusedError, "overlay"),
        "the file system of base_dir cannot hold the changes of a sandbox: choose another base_dir, or "
        "overlay='memory' "
        "({reason})",
        "(?i)overlay",
    ),
    ErrorRow(
        ConfigError,
        "fakeroot is impossible ({reason}): leave it out, or run `sudo usermod --add-subuids 100000-165535 "
        "--add-subgids 100000-165535 $USER`",
        "(?i)subuid|subgid|newuidmap|fakeroot",
    ),
    ErrorRow(
        BackendUnavailable,
        "the engine may not start sandboxes as this user ({reason}): an administrator allows user namespaces with "
        "`sysctl user.max_user_namespaces=15000`, or sets `root default capabilities = no` for root",
        "(?i)user namespace|setuid|capability set",
    ),
    ErrorRow(ImageError, "the image is not for this machine: {reason}", "(?i)architecture|exec format error"),
    ErrorRow(
        ImageError,
        "the image cannot be opened: {reason}",
        "(?i)could not open image|no such file or directory|image format|not a valid image",
    ),
    ErrorRow(
        ImageError,
        "the directory is not the root of an image, which has /dev, /proc, /sys and /tmp: {reason}",
        "(?i)exist in container",
    ),
    ErrorRow(LaunchError, "the sandbox did not start: {reason}"),
)


def start_error(log: str) -> ExecError:
    """Return the error for the last messages of the engine, or of the runner in the sandbox."""
    words = " ".join(word.strip() for word in WORDS.findall(log))
    return translate(ROWS, words[-1000:] or log.strip()[-1000:] or "there is no message")


def image_build_error(name: str, source: str, log: str, obstacle: str) -> ExecError:
    """Return the error for an image that was not built from a source, with the engine's messages. `obstacle`: why this
    user cannot mount the file of an image.
    """
    words = WORDS.findall(log)
    reason = (words[-1] if words else log.strip() or "the engine gave no reason")[-1000:]
    if ":" in source:
        return fetch_error(name, reason)
    if source.endswith(".def"):
        # The last error reports that a section failed; the reason is above it.
        return build_error(name, "\n".join(line for line in log.splitlines() if not line.startswith("INFO:")))
    return ImageError(
        f"this user cannot mount the file {name!r} ({obstacle}), and it cannot be made a directory either: give access "
        "to /dev/fuse and install squashfuse, or name a directory (apptainer build --sandbox DIRECTORY FILE): "
        f"{reason}"
    )
