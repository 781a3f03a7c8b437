"""The sandbox of inspect_ai that is a slot."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload

import anyio
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from hermes_exec import (
    BackendUnavailable,
    ConfigError,
    ExecError,
    OutputLimitExceeded,
    RunResult,
    SandboxPool,
    Slot,
)
from hermes_inspect.capacity import acquire_slot
from hermes_inspect.config import CONFIG_FILES, HermesConfig, read_config

logger = logging.getLogger(__name__)

CANNOT_EXECUTE = 126
POLLING_INTERVAL_S = 0.2


@sandboxenv(name="hermes")
class HermesSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc, unused-ignore]
    """A slot in which one sample works. All samples with the same configuration share a pool.

    The lost sandbox of a sample raises `SandboxUnavailableError`; it is never the result of a command.
    """

    def __init__(self, pool: SandboxPool, slot: Slot) -> None:
        super().__init__()
        self._pool = pool
        self._slot = slot

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the names of the files that inspect_ai looks for beside the task."""
        return list(CONFIG_FILES)

    @classmethod
    def is_docker_compatible(cls) -> bool:
        """Return True: Dockerfiles, and compose files with one service, are configurations."""
        return True

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> HermesConfig:
        """Return the configuration that a log holds."""
        return HermesConfig(**config)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return None: samples wait for a slot of their pool, whose size its configuration states."""
        return None

    def default_polling_interval(self) -> float:
        """Return the seconds between two polls of inspect_ai's services."""
        return POLLING_INTERVAL_S

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Check the configuration and open its pool, before a sample starts.

        Raises:
            PrerequisiteError: If the configuration is wrong, or its backend is not there.
        """
        try:
            request = read_config(config)
            pool = await request.shared_pool().open()
            await pool.prewarm(0, request.profile)  # starts nothing: it checks the profile
        except (ConfigError, BackendUnavailable) as error:
            raise PrerequisiteError(f"sandbox 'hermes': {error}") from error
        except ExecError as error:
            logger.warning("sandbox 'hermes': %s", error)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Acquire the slot of a sample. A wait for slots of other samples has no time limit.

        Raises:
            PrerequisiteError: If the configuration is wrong.
            SandboxUnavailableError: If no slot can be acquired.
        """
        try:
            request = read_config(config)
            pool = await request.shared_pool().open()
            slot = await acquire_slot(pool, request.profile)
        except ConfigError as error:
            raise PrerequisiteError(f"sandbox 'hermes': {error}") from error
        except ExecError as error:
            raise SandboxUnavailableError(str(error)) from error
        return {"default": cls(pool, slot)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Release the slot of a sample."""
        for environment in environments.values():
            own = environment.as_type(cls)
            await own._pool.release(own._slot)

    @classmethod
    async def task_cleanup(cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool) -> None:
        """End the sandboxes of a pool, unless some slots are held."""
        if not cleanup:
            logger.warning("sandbox 'hermes': slots end with this process, so that --no-sandbox-cleanup keeps none")
            return
        pool = read_config(config).shared_pool()
        stats = pool.stats()
        if stats.acquired == stats.released:
            await pool.aclose()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """End the sandboxes of the run `id`, or all whose process is gone: `inspect sandbox cleanup hermes [ID]`."""
        which = ["--run-id", id] if id else ["--orphans"]
        program = "from hermes_exec.cli.main import main; main()"
        await anyio.run_process([sys.executable, "-c", program, "reap", *which], stdout=None, stderr=None, check=False)

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return the command that shows the slot: its processes, and the output of its commands."""
        return SandboxConnection(type="hermes", command=f"hermes-exec shell --slot {self._slot.id}")

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command. A timeout ends all its processes, and is never retried.

        Raises:
            TimeoutError: After `timeout` seconds, with the output so far as `truncated_output`.
            PermissionError: If the program cannot be executed.
            OutputLimitExceededError: If stdout or stderr is longer than the limit of inspect_ai, or the maximum here.
            SandboxUserUnsupportedError: If commands here cannot run as `user`.
            SandboxUnavailableError: If the slot is lost.
            OSError: If `cwd` is no directory that can be entered.
        """
        _refuse_nul(*cmd, cwd or "", *(env or {}).values())
        limit_bytes = min(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE, self._slot.most_output_bytes)
        with _errors_of_inspect(user):
            result = await self._slot.run(
                cmd,
                stdin=input,
                cwd=cwd,
                env=env or None,
                user=None if user is None else str(user),
                timeout_s=timeout,
                output_limit_bytes=limit_bytes,
            )
        return _explain(result, cmd, timeout, limit_bytes)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file with its missing directories.

        Raises:
            OSError: If it cannot be written.
            SandboxUnavailableError: If the slot is lost.
        """
        with _errors_of_inspect():
            await self._slot.files.write_bytes(
                _path(file), contents.encode() if isinstance(contents, str) else contents
            )

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a whole file; a text keeps its line ends.

        Raises:
            OSError: If it cannot be read.
            UnicodeDecodeError: If a text is not UTF-8.
            OutputLimitExceededError: If it is larger than the limit of inspect_ai.
            SandboxUnavailableError: If the slot is lost.
        """
        limit_bytes = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _errors_of_inspect():
            try:
                data = await self._slot.files.read_bytes(_path(file), limit_bytes=limit_bytes)
            except OutputLimitExceeded:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from None
        return data.decode() if text else data


def _explain(result: RunResult, cmd: list[str], timeout_s: int | None, limit_bytes: int) -> ExecResult[str]:
    """Return a result as inspect_ai's. Raises as `exec`."""
    if result.timed_out:
        error = TimeoutError(f"Command timed out after {timeout_s} seconds")
        error.truncated_output = f"{result.stdout}{result.stderr}"  # type: ignore[attr-defined]
        raise error
    if result.exit_code == CANNOT_EXECUTE and result.reason:
        raise PermissionError(f"{cmd[0]}: {result.reason}")
    if result.stdout_dropped_bytes or result.stderr_dropped_bytes:
        output = f"{result.stdout}{result.stderr}"
        most = limit_bytes >= SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        size = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR if most else f"{limit_bytes / (1 << 20):.3g} MiB"
        raise OutputLimitExceededError(size, output)
    return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)


def _refuse_nul(*texts: str) -> None:
    """Raise the error that inspect_ai reports to the model if a text holds a NUL character."""
    if any("\0" in text for text in texts):
        raise ValueError("embedded null byte")


def _path(file: str) -> str:
    """Return the path of a file. An empty one is the working directory, as in the sandboxes of inspect_ai."""
    _refuse_nul(file)
    return file or "."


@contextmanager
def _errors_of_inspect(user: str | None = None) -> Iterator[None]:
    """Raise the errors that inspect_ai has for those of a slot."""
    try:
        yield
    except ConfigError as error:
        if user is None:
            raise
        raise SandboxUserUnsupportedError(str(error)) from error
    except ExecError as error:
        raise SandboxUnavailableError(str(error)) from error
