"""Images of Modal: each name is resolved and built once by a backend, with the runner added."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import anyio

from hermes_exec.backends.dockerfile import DOCKERFILE, directory_of
from hermes_exec.backends.modal.client import ModalClient
from hermes_exec.backends.modal.config import ModalConfig
from hermes_exec.backends.runner_binary import find_runner
from hermes_exec.errors import ConfigError, ImageError, LaunchTimeout
from hermes_exec.results import PullProgress

if TYPE_CHECKING:
    import modal

Progress = Callable[[PullProgress], None]
RUNNER = "/hermes-exec/runner"
REPORT_AFTER_S = 2.0
LOG_LINES = 40
LOG_S = 10.0


class ModalImages:
    """The images of one backend. They belong to the client's event loop."""

    def __init__(self, client: ModalClient, config: ModalConfig) -> None:
        self._client = client
        self._config = config
        self._built: dict[str, modal.Image] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def ensure(self, name: str, timeout_s: float, on_progress: Progress | None) -> modal.Image:
        """Return the image; Modal builds it if it is missing.

        Raises:
            ImageError: If it cannot be built, with the end of Modal's log.
            LaunchTimeout: If it took longer than `timeout_s`.
        """
        async with self._locks.setdefault(name, anyio.Lock()):
            if name not in self._built:
                try:
                    with anyio.fail_after(timeout_s):
                        with report_progress(name, "Modal builds the image", on_progress):
                            self._built[name] = await self._build(name)
                except TimeoutError as error:
                    message = f"the image {name!r} was not built within pull_timeout_s={timeout_s:g}"
                    raise LaunchTimeout(message) from error
        return self._built[name]

    async def _build(self, name: str) -> modal.Image:
        from modal.exception import ImageBuildError

        # Modal's machines are amd64. The file is added when a sandbox starts: the image itself is unchanged.
        image = self._define_image(name).add_local_file(find_runner("linux", "amd64").path, RUNNER)
        try:
            return await image.build.aio(await self._client.app())
        except ImageBuildError as error:
            log = await _log(image)
            raise ImageError(f"Modal cannot build the image {name!r}: {error}\n{log}".rstrip()) from error

    def _define_image(self, name: str) -> modal.Image:
        import modal

        if name in self._config.images:
            own: object = self._config.images[name]
            if not isinstance(own, modal.Image):
                raise ConfigError(f"images[{name!r}] must be a modal.Image, not {type(own).__name__}")
            return own
        if name.startswith("im-"):
            return modal.Image.from_id(name)
        secret = self._config.registry_secret
        where = self._config.environment
        credentials = None if secret is None else modal.Secret.from_name(secret, environment_name=where)
        if (directory := directory_of(name)) is not None:
            image = modal.Image.from_dockerfile(
                directory / DOCKERFILE, context_dir=directory, registry_secret=credentials
            )
        else:
            image = modal.Image.from_registry(name, secret=credentials)
        return image.entrypoint([])  # else the runner would be an argument of the image's entrypoint


@contextlib.contextmanager
def report_progress(name: str, doing: str, on_progress: Progress | None) -> Iterator[None]:
    """Report work that takes long. An image that Modal already has is ready in a moment."""
    if on_progress is None:
        yield
        return
    report = asyncio.get_running_loop().call_later(REPORT_AFTER_S, on_progress, PullProgress(name, doing))
    try:
        yield
    finally:
        report.cancel()


async def _log(image: modal.Image) -> str:
    from modal.exception import Error

    lines: list[str] = []
    with contextlib.suppress(Error, OSError), anyio.move_on_after(LOG_S):
        lines.extend([entry.message async for entry in image.logs.tail.aio(LOG_LINES)])
    return "".join(lines).strip()[-4000:]
