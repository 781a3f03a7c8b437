"""The backends for commands that query all of them (`ps`, `reap`, `doctor`)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio

from hermes_exec.backends.base import Backend, ReapedSandbox, SandboxInfo
from hermes_exec.backends.registry import backend_names, config_type, has_client, make_backend
from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.output import say
from hermes_exec.cli.kit.pools import settings_of
from hermes_exec.config import BackendConfig, backend_sections, read_config
from hermes_exec.errors import BackendUnavailable, ConfigError, ExecError
from hermes_exec.redact import mask_raised_errors, secret_values

T = TypeVar("T", SandboxInfo, ReapedSandbox)
CLOSING_S = 5.0


@dataclass(frozen=True)
class BackendSelection:
    """The backends of a command: `names`, the file's first. `alone`: a single backend was selected."""

    names: list[str]
    in_file: frozenset[str] = frozenset()
    alone: bool = False


@dataclass
class BackendAnswer(Generic[T]):
    """The answer of one backend, by its name in the configuration, or its error."""

    name: str
    in_file: bool
    sandboxes: list[T] = field(default_factory=list)
    error: ExecError | None = None


def select_backends(backend: str | None, config: Path | None, options: list[str] | None) -> BackendSelection:
    """Return the selected backend, else all backends of the file and all that need no options here.

    Raises:
        ConfigError: If the file cannot be read, or there are options without a single backend.
    """
    named = [] if backend is not None or config is None else list(backend_sections(read_config(config)))
    name = backend if backend is not None or named else settings_of(None, None, config, options).get("backend")
    if name is not None:
        return BackendSelection([name], alone=True)
    if options:
        raise ConfigError("--option needs --backend, or a file with a single backend")
    others = [each for each in backend_names() if each not in named and not needs_options(each) and has_client(each)]
    return BackendSelection([*named, *others], frozenset(named))


def backend_config(settings: Mapping[str, Any]) -> BackendConfig:
    """Return the configuration of a backend, from the settings of a pool.

    Raises:
        ConfigError: If one of them is wrong, or a required one is missing.
        BackendUnavailable: If the backend is not installed.
    """
    config_class = config_type(str(settings["backend"]))
    flat = {**(settings.get("backend_options") or {}), **settings}
    return config_class.of({key: value for key, value in flat.items() if key in config_class.model_fields})


def needs_options(name: str) -> bool:
    """Check whether a backend has required options."""
    try:
        return any(field.is_required() for field in config_type(name).model_fields.values())
    except ExecError:
        return False  # a query reports the error


async def ask_each(
    wanted: BackendSelection,
    config: Path | None,
    options: list[str] | None,
    question: Callable[[Backend], Awaitable[list[T]]],
    time_limit_s: float,
) -> list[BackendAnswer[T]]:
    """Query the backends concurrently and return their answers.

    An error or timeout of one backend is printed, and does not affect the others. A sandbox that several backends
    report (they may use the same engine) appears once.

    Raises:
        BackendUnavailable: If the single selected backend cannot be reached.
        ConfigError: If its options are invalid.
    """
    logs = logging.getLogger("hermes_exec.backends")
    logs.setLevel(min(logs.getEffectiveLevel(), logging.WARNING))

    async def ask(name: str) -> list[T]:
        chosen = backend_config(settings_of(name, None, config, options))
        with mask_raised_errors(secret_values(chosen)):
            backend = make_backend(chosen)
            try:
                return await question(backend)
            finally:
                with anyio.move_on_after(CLOSING_S, shield=True):
                    await backend.aclose()

    if wanted.alone:
        return [BackendAnswer(name, False, await ask(name)) for name in wanted.names]
    answers = [BackendAnswer[T](name, name in wanted.in_file) for name in wanted.names]

    async def fill(answer: BackendAnswer[T]) -> None:
        try:
            with anyio.fail_after(time_limit_s):
                answer.sandboxes = await ask(answer.name)
        except ExecError as error:
            answer.error = error
        except TimeoutError:
            answer.error = BackendUnavailable(f"no answer within {time_limit_s:g} s")
        except Exception as error:  # noqa: BLE001 - one backend must not affect the others
            answer.error = BackendUnavailable(f"{type(error).__name__}: {error}")

    async with anyio.create_task_group() as tasks:
        for answer in answers:
            tasks.start_soon(fill, answer)
    seen: set[tuple[str, str]] = set()
    for answer in answers:
        answer.sandboxes = [sandbox for sandbox in answer.sandboxes if (sandbox.backend, sandbox.sandbox) not in seen]
        seen |= {(sandbox.backend, sandbox.sandbox) for sandbox in answer.sandboxes}
        if answer.error is not None and answer.in_file:
            say(f"{answer.name} is left out: {answer.error}")
    away = [answer.name for answer in answers if answer.error is not None and not answer.in_file]
    if away:
        say(f"left out: {', '.join(away)} (see hermes-exec doctor)")
    return answers


def code_of_all(answers: list[BackendAnswer[T]]) -> int:
    """Return the exit code of a command over all backends: OK if one has answered."""
    codes = [exits.OK if answer.error is None else exits.code_of(answer.error) for answer in answers]
    return exits.OK if exits.OK in codes else max(codes, default=exits.OK)
