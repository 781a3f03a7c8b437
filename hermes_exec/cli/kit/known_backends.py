"""The backends that commands over all of them (`ps`, `reap`, `doctor`) talk to."""

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
    """The backends that a command asks: `names`, those of the file first. `alone`: one that was asked for by itself."""

    names: list[str]
    in_file: frozenset[str] = frozenset()
    alone: bool = False


@dataclass
class BackendAnswer(Generic[T]):
    """What one backend said, by the name that users know; or why it said nothing."""

    name: str
    in_file: bool
    sandboxes: list[T] = field(default_factory=list)
    error: ExecError | None = None


def select_backends(backend: str | None, config: Path | None, options: list[str] | None) -> BackendSelection:
    """The one that is asked for, by itself or in a file; else all that the file names, and all that can be had here
    without options.

    Raises:
        ConfigError: the file cannot be read, or there are options for nobody in particular.
    """
    named = [] if backend is not None or config is None else list(backend_sections(read_config(config)))
    name = backend if backend is not None or named else settings_of(None, None, config, options).get("backend")
    if name is not None:
        return BackendSelection([name], alone=True)
    if options:
        raise ConfigError("--option needs --backend, or a file that is about one backend")
    others = [each for each in backend_names() if each not in named and not needs_options(each) and has_client(each)]
    return BackendSelection([*named, *others], frozenset(named))


def backend_config(settings: Mapping[str, Any]) -> BackendConfig:
    """The configuration of a backend by what the settings of a pool have for it.

    Raises:
        ConfigError: one of them is wrong, or one that it needs is missing.
        BackendUnavailable: it is not installed.
    """
    config_class = config_type(str(settings["backend"]))
    flat = {**(settings.get("backend_options") or {}), **settings}
    return config_class.of({key: value for key, value in flat.items() if key in config_class.model_fields})


def needs_options(name: str) -> bool:
    """Whether a backend can be had with its options alone."""
    try:
        return any(field.is_required() for field in config_type(name).model_fields.values())
    except ExecError:
        return False  # whoever asks it is told what is wrong


async def ask_each(
    wanted: BackendSelection,
    config: Path | None,
    options: list[str] | None,
    question: Callable[[Backend], Awaitable[list[T]]],
    time_limit_s: float,
) -> list[BackendAnswer[T]]:
    """Ask the backends all at once. One that cannot be had, or does not answer in time, is told and holds up no other,
    and so are hosts of a backend. What several backends know of (they may be of one engine) is found once.

    Raises:
        BackendUnavailable: the one that was asked for by itself cannot be reached.
        ConfigError: it cannot be had with these options.
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are not to suffer for it
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
        say(f"left out: {', '.join(away)} (hermes-exec doctor says why)")
    return answers


def code_of_all(answers: list[BackendAnswer[T]]) -> int:
    """The exit code of a command over all of them: OK when one has answered."""
    codes = [exits.OK if answer.error is None else exits.code_of(answer.error) for answer in answers]
    return exits.OK if exits.OK in codes else max(codes, default=exits.OK)
