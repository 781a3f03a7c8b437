"""`hermes-exec ps`: all sandboxes of this library on this host, and the slots in use."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import age, emit_json, one_line, say, shorten_id, table
from hermes_exec.cli.kit.pools import AnyBackend, AsJson, Config, Options

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_exec.backends.base import Backend, SandboxInfo

TIME_LIMIT_S = 30.0
"""Time limit per backend, where all are queried."""


def ps(backend: AnyBackend = None, config: Config = None, option: Options = None, as_json: AsJson = False) -> None:
    """List the sandboxes here, with their owner, user, run, age, note and the slots in use.

    Slots are known for processes of the same user on this host (root: of all users). Without --backend all backends are
    queried at once, for 30 seconds at most, also the backends of a configuration file. An unavailable or misconfigured
    backend has a row with its error.
    """
    raise typer.Exit(run_async(lambda: _list(backend, config, option, as_json)))


async def _list(backend: str | None, config: Path | None, option: list[str] | None, as_json: bool) -> int:
    from hermes_exec.backends.capabilities import HasLeftovers
    from hermes_exec.cli.kit.ending import error_fields
    from hermes_exec.cli.kit.known_backends import BackendAnswer, ask_each, code_of_all, select_backends
    from hermes_exec.cli.observe.client import list_slots

    wanted = select_backends(backend, config, option)
    left: list[str] = []

    async def ask(backend: Backend) -> list[SandboxInfo]:
        if isinstance(backend, HasLeftovers):
            left.extend(await backend.leftovers())
        return await backend.sandboxes()

    answers: list[BackendAnswer[SandboxInfo]] = await ask_each(wanted, config, option, ask, TIME_LIMIT_S)
    for line in left:
        say(one_line(line))
    slots: dict[str, list[str]] = {}
    for _, facts in await list_slots():
        slots.setdefault(str(facts.sandbox), []).append(one_line(facts.id))
    rows: list[dict[str, Any]] = []
    for answer in answers:
        if answer.error is not None and answer.in_file:
            rows.append({"backend": answer.name, "sandbox": None, "error": error_fields(answer.error)})
        for info in sorted(answer.sandboxes, key=lambda info: info.created_at or 0.0):
            own = {"backend": answer.name, "type": info.backend, "slots": slots.get(info.sandbox, [])}
            rows.append({**asdict(info), **own})
    if as_json:
        emit_json(rows)
    else:
        now, hosts = time.time(), any(row.get("host") for row in rows)
        notes = any(row["labels"]["note"] for row in rows if row["sandbox"] is not None)
        table(
            (
                "backend",
                *(("host",) if hosts else ()),
                "sandbox",
                "state",
                "owner",
                "user",
                "pid",
                "run",
                "age",
                "image",
                "slots",
                *(("note",) if notes else ()),
            ),
            [_cells(row, now, hosts, notes) for row in sorted(rows, key=lambda row: str(row["backend"]))],
        )
    return code_of_all(answers)


def _cells(row: dict[str, Any], now: float, hosts: bool, notes: bool) -> tuple[object, ...]:
    if row["sandbox"] is None:
        return (row["backend"], *((None,) if hosts else ()), None, row["error"]["kind"], *[None] * (7 + notes))
    created, labels = row["created_at"], row["labels"]
    return (
        row["backend"],
        *((row["host"],) if hosts else ()),
        shorten_id(row["sandbox"]),
        row["state"],
        row["owner"],
        _user_at_host(labels),
        labels["pid"],
        labels["run_id"],
        None if created is None else age(max(0.0, now - created)),
        row["image"],
        " ".join(row["slots"]) or None,
        *((labels["note"] or None,) if notes else ()),
    )


def _user_at_host(labels: dict[str, Any]) -> str | None:
    """Return the user of the owner and the owner's host, where they are recorded."""
    host, named, _ = labels["host_id"].partition(":")  # without a colon it is a digest, not a name
    return f"{labels['user']}@{host}" if labels["user"] and named else labels["user"] or None


def add_to(app: typer.Typer) -> None:
    """Add the command `ps`."""
    app.command(epilog="Example: hermes-exec ps --json")(ps)
