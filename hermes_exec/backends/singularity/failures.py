"""What the engine's words about a box that did not start come to."""

from __future__ import annotations

import re
from typing import Literal

from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError, ImageError, LaunchError, QuotaExceeded

Refused = Literal["overlay", "limits"]
"""What some hosts refuse and a box may be had without: changes of the image on disk, limits of the box."""
WORDS = re.compile(r"^(?:\x1b\[\d*m)*(?:FATAL|ERROR)\s*:\s*(.*)", re.MULTILINE)


class RefusedError(LaunchError):
    """Raised when a box did not start because of what could be done without."""

    def __init__(self, refused: Refused, error: ExecError) -> None:
        super().__init__(str(error), cause=error.cause, retryable=False)
        self.refused = refused
        self.error = error


def explain(log: str) -> ExecError:
    """The error for what the engine, or the runner in the box, has said last."""
    said = " ".join(word.strip() for word in WORDS.findall(log))[-1000:] or log.strip()[-1000:] or "it said nothing"
    low = said.lower()
    if "no space left" in low or "disk quota" in low:
        return QuotaExceeded(f"there is no room for another box: {said}")
    if re.search(r"timed out|timeout|deadline exceeded|temporarily unavailable|cannot allocate memory", low):
        return LaunchError(f"the box did not start this time: {said}")  # no property of the host
    if re.search(r"squashfuse|/dev/fuse|fuse2fs|failed to mount squashfs|mount.*squashfs|no loop device", low):
        return ImageError(
            f"this user cannot mount the file of the image here ({said}): give access to /dev/fuse and install "
            "squashfuse, or name the image as a folder (apptainer build --sandbox DIR IMAGE)"
        )
    if "cgroup" in low or "dbus" in low:
        limits = "limits of a box cannot be set by this user here: use slot_limits, or best_effort_limits=True"
        return RefusedError("limits", ConfigError(f"{limits} ({said})"))
    if "overlay" in low:
        overlay = "the file system of base_dir cannot hold the changes of a box"
        mend = "choose another base_dir, or overlay='memory'"
        return RefusedError("overlay", ConfigError(f"{overlay}: {mend} ({said})"))
    if re.search(r"subuid|subgid|newuidmap|fakeroot", low):
        return ConfigError(
            f"fakeroot cannot be had ({said}): leave it out, or run `sudo usermod --add-subuids 100000-165535 "
            "--add-subgids 100000-165535 $USER`"
        )
    if re.search(r"user namespace|setuid installation|setuid|capability set", low):
        return BackendUnavailable(
            f"the engine may not start boxes as this user ({said}): an administrator allows user namespaces with "
            "`sysctl user.max_user_namespaces=15000`, or sets `root default capabilities = no` for root"
        )
    if re.search(r"architecture|exec format error", low):
        return ImageError(f"the image is not for this machine: {said}")
    if re.search(r"could not open image|no such file or directory|image format|not a valid image", low):
        return ImageError(f"the image cannot be opened: {said}")
    if "exist in container" in low:
        return ImageError(f"the folder is not the root of an image, which has /dev, /proc, /sys and /tmp: {said}")
    return LaunchError(f"the box did not start: {said}")
