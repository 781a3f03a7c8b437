"""Translation of errors of the Docker SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from docker.errors import APIError, DockerException, ImageNotFound
from requests import RequestException
from urllib3.exceptions import HTTPError

from hermes_exec.backends.base import NoOwnRoot
from hermes_exec.backends.engine_errors import ErrorRow, temporarily_unavailable, translate
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError, ImageError, LaunchError

REFUSED = "Docker refuses the configuration: {reason}"
ROWS = (
    ErrorRow(ImageError, "there is no such image: {reason}", types=(ImageNotFound,)),
    ErrorRow(ConfigError, REFUSED, types=(APIError,), statuses=(400,)),
    ErrorRow(ConfigError, REFUSED, r"unable to find (user|group) |network \S+ not found", types=(APIError,)),
    ErrorRow(ConfigError, REFUSED, "could not select device driver", types=(APIError,)),
    ErrorRow(
        NoOwnRoot,
        "Podman reads the seccomp profile for own roots from its own host, where it is missing ({reason}): "
        "run Podman on this host",
        "opening seccomp profile failed",
        types=(APIError,),
    ),
    ErrorRow(LaunchError, "Docker answered with {status}: {reason}", types=(APIError,)),
    ErrorRow(
        BackendUnavailable,
        "this user may not use the Docker daemon: sudo usermod -aG docker $USER, then log in again",
        "Permission denied",
    ),
    ErrorRow(  # silence proves nothing about the configuration
        temporarily_unavailable,
        "the Docker daemon does not answer in time: sudo systemctl restart docker ({reason})",
        "(?i)timed out",
    ),
    ErrorRow(
        BackendUnavailable,
        "no Docker daemon answers: sudo systemctl start docker, or set base_url or DOCKER_HOST ({reason})",
    ),
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn errors of the SDK into errors of this library.

    Raises:
        BackendUnavailable: If no daemon answers, or it refuses this user; with the remedy.
        ImageError: If an image is missing.
        ConfigError: If the daemon refuses the request as wrong.
        NoOwnRoot: If Podman does not find the seccomp profile.
        LaunchError: For everything else.
    """
    try:
        yield
    except ExecError:
        raise
    except APIError as error:
        reason, status = str(error.explanation or error), error.status_code
        raise translate(ROWS, reason, failure=error, status=status) from error
    except (DockerException, RequestException, HTTPError, OSError) as error:
        raise translate(ROWS, str(error), failure=error) from error
