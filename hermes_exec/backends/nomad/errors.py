"""Failures that Nomad and its nodes report, and their translation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hermes_exec.backends.engine_errors import ErrorRow, translate
from hermes_exec.backends.image_errors import fetch_error
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError, ImageError, LaunchError


class NotFound(LaunchError):
    """Raised when Nomad has no such job, allocation or evaluation."""


NO_ANSWER = "Nomad does not answer"
NO_ANSWER_AT = f"{NO_ANSWER} at {{address}}: set address or NOMAD_ADDR, and look at its TLS settings "
DENIED = "does not let us"
NO_RIGHT = (
    f"Nomad at {{address}} {DENIED} ({{reason}}): set token, or NOMAD_TOKEN, to one with the policy {{policy}} (a "
    "namespace that is not there is refused, too)"
)
REFUSED = "Nomad refuses the configuration: {reason}"
ROWS = (
    ErrorRow(BackendUnavailable, NO_ANSWER_AT + "({reason})", types=(Exception,)),
    ErrorRow(BackendUnavailable, NO_ANSWER_AT + "({status}: {reason})", statuses=(429, 502, 503, 504)),
    ErrorRow(
        BackendUnavailable,
        NO_ANSWER_AT + "({status}: {reason})",
        "No cluster leader|failed to get conn|leadership lost",
    ),
    ErrorRow(BackendUnavailable, NO_RIGHT, statuses=(401, 403)),
    ErrorRow(BackendUnavailable, NO_RIGHT, "Permission denied"),
    ErrorRow(NotFound, "Nomad: {reason}", ".", statuses=(404,)),
    ErrorRow(BackendUnavailable, NO_ANSWER_AT + "(404 without a text, so it is not Nomad)", statuses=(404,)),
    ErrorRow(ConfigError, REFUSED, statuses=(400,)),
    ErrorRow(
        ConfigError,
        REFUSED,
        "(?i)validation failed|validation error|nonexistent|no path to region|must be between|minimum ",
    ),
    ErrorRow(LaunchError, "Nomad answered with {status}: {reason}"),
)
"""Failed requests: no answer, or an unsuccessful one."""
TASK_ROWS = (
    ErrorRow(
        ImageError,
        "the image {image!r} has no shell, which runner_delivery='bind' goes without: {reason}",
        "/bin/sh.*(not found|no such file)",
    ),
    ErrorRow(
        ConfigError,
        "the node refuses the sandbox: {reason}",
        "not enabled|not allowed|isn't allowed|[Ii]nvalid|unable to find user|failed to (decode|parse|validate)"
        "|[Uu]nknown",
    ),
    ErrorRow(
        ConfigError,
        "the runner cannot be executed in the sandbox: its directory, which is below Nomad's data_dir with "
        "driver='singularity', must not be mounted noexec ({reason})",
        "Exit Code: 126",
    ),
    ErrorRow(LaunchError, "the sandbox did not start: {reason}"),
)
"""Reports of a node on a task that ended before its runner was there."""
PULL_FAILED = r"[Ff]ailed to (pull|find) |reference format|registry specification|image (not|name)"


def is_denied(error: ExecError) -> bool:
    """Return whether an error means that the token lacks a right."""
    return DENIED in str(error)


def task_error(image: str, events: list[Mapping[str, Any]]) -> ExecError:
    """Return the error for a task that ended before its runner was there."""
    failures = [each for each in events if "Fail" in str(each.get("Type"))] or events[-3:]
    reason = "; ".join(str(each.get("DisplayMessage")) for each in failures)
    if not re.search(PULL_FAILED, reason):
        return translate(TASK_ROWS, reason, image=image)
    error = fetch_error(image, reason)
    if re.search(r"(^|/)[^:/@]+(:latest)?$", image):
        advice = "Nomad always fetches the tag 'latest': an image that its nodes have needs another"
        return type(error)(f"{error}. {advice}", cause=error.cause, retryable=error.retryable)
    return error
