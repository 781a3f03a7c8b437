"""`hermes-exec ps`: the boxes of this library on this host, whoever owns them, and the slots that are lent in them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import age, emit_json, one_line, shortened, table
from hermes_exec.cli.kit.pools import AnyBackend, AsJson, Config, Options

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_exec.backends.base import SandboxInfo


def ps(backend: AnyBackend = None, config: Config = None, option: Options = None, as_json: AsJson = False) -> None:
    """List the boxes that exist here, with their owner, run, age and the slots that are lent to somebody.

    Slots are known for processes of the same user on this host (root: of all users).
    """
    raise typer.Exit(run_async(lambda: _list(backend, config, option, as_json)))


async def _list(backend: str | None, config: Path | None, option: list[str] | None, as_json: bool) -> int:
    from hermes_exec.cli.kit.known_backends import ask_each
    from hermes_exec.cli.observe.client import lent_slots

    found: list[SandboxInfo] = await ask_each(backend, config, option, lambda each: each.sandboxes())
    slots: dict[str, list[str]] = {}
    for _, facts in await lent_slots():
        slots.setdefault(str(facts.get("sandbox")), []).append(one_line(str(facts.get("id"))))
    if as_json:
        emit_json([{**asdict(info), "slots": slots.get(info.sandbox, [])} for info in found])
        return exits.OK
    now = time.time()
    hosts = any(info.host for info in found)
    table(
        ("backend", *(("host",) if hosts else ()), "box", "state", "owner", "pid", "run", "age", "image", "slots"),
        [
            (
                info.backend,
                *((info.host,) if hosts else ()),
                shortened(info.sandbox),
                info.state,
                info.owner,
                info.labels.pid,
                info.labels.run_id,
                None if info.created_at is None else age(max(0.0, now - info.created_at)),
                info.image,
                " ".join(slots.get(info.sandbox, [])) or None,
            )
            for info in sorted(found, key=lambda info: (info.backend, info.created_at or 0.0))
        ],
    )
    return exits.OK


def add_to(app: typer.Typer) -> None:
    """Add the command `ps`."""
    app.command(epilog="Example: hermes-exec ps --json")(ps)
