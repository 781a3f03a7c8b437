"""What a tenant can make of the calls that the driver makes for it: links, races, special files."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread

from hermes_exec import Slot
from hermes_exec.errors import ExecError
from hermes_exec.slot.files import READ_LIMIT_BYTES
from tests.attack.arena import DIRECTORY, Arena
from tests.attack.fire import loot_in, mended, own_trouble
from tests.attack.model import Against, Attack, Outcome
from tests.e2e.cli.hostile import HOSTILE, OBEYED, shown

ROUNDS = 2
PATIENCE_S = 30.0
Call = Callable[[], Awaitable[object]]


async def follow_links(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Links to the target's files, and every call of the driver on them."""
    target = field.target(against)
    await field.run(attack.program, target)
    names = [f"link-{number}" for number in range(len(target["paths"]))]
    names += [
        f"directory-{number}"
        for number, directory in enumerate(target["directories"])
        if directory in others(field, target)
    ]
    got = [await use(field.attacker, name) for name in names]
    return await judged(field, against, "\n".join(got))


async def race(field: Arena, attack: Attack, against: Against) -> Outcome:
    """The driver works on a path while the tenant exchanges a directory on it and a link to the target's directory."""
    target = field.target(against)
    name = Path(target["paths"][0]).name
    got = []
    for number, directory in enumerate(others(field, target)):
        aim = json.dumps({**target, "directories": [directory], "at": f"race-{number}"})
        argv = ["python3", "-B", f"{field.attacker.workspace}/{DIRECTORY}/files.py", "swap", aim]
        process = await field.attacker.spawn(argv)
        assert b"ready" in await process.stdout.receive()
        got += [await use(field.attacker, f"race-{number}", name) for _ in range(ROUNDS)]
        await process.kill()
    return await judged(field, against, "\n".join(got))


def others(field: Arena, target: dict[str, Any]) -> list[str]:
    """Directories that are not by their names the attacker's own too; the last one where all are."""
    slot, directories = field.attacker, list(target["directories"])
    return [
        directory for directory in directories if directory not in (slot.workspace, slot.home, slot.tmp)
    ] or directories[-1:]


async def judged(field: Arena, against: Against, got: str) -> Outcome:
    """By what the calls brought, and by harm."""
    own, harm = await own_trouble(field), await mended(field)
    if loot := loot_in(field, against, got) or harm:
        return Outcome("not given", loot)
    return Outcome("contained", own) if own else Outcome("prevented", got[-200:])


async def use(slot: Slot, path: str, name: str = "") -> str:
    """Every file call and both ways of trees on a path; what they brought, and what they raised."""
    within = f"{path}/{name}" if name else path
    with tempfile.TemporaryDirectory(prefix="attack-tree-") as directory:
        tree = anyio.Path(directory, "tree")
        await tree.mkdir()
        await (tree / (name or "planted")).write_text("planted")
        calls: list[Call] = [
            lambda: slot.files.read_bytes(within),
            lambda: slot.files.list(path, recursive=True),
            lambda: slot.files.search("[0-9a-f]{24}", path=path, regex=True),
            lambda: slot.files.copy(path, "copied", recursive=True),
            lambda: slot.files.copy(within, "copied-file"),
            lambda: slot.files.download(path, f"{directory}/down"),
            lambda: slot.files.download("copied", f"{directory}/copied"),
            lambda: slot.files.upload(str(tree), path),
            lambda: slot.files.write_bytes(within, b"changed"),
            lambda: slot.files.write_bytes(within, b"more", append=True),
            lambda: slot.files.chmod(within, 0o777),
            lambda: slot.files.move(within, "moved"),
            lambda: slot.files.move("moved", within),
            lambda: slot.files.read_bytes("copied-file"),
            lambda: slot.files.remove(within, recursive=True),
        ]
        got = [await attempt(call) for call in calls]
        downloaded = [file async for file in anyio.Path(directory).rglob("*") if not await file.is_symlink()]
        got += [(await file.read_bytes()).decode("latin-1") for file in downloaded if await file.is_file()]
    return "\n".join(got)


async def attempt(call: Call) -> str:
    """What a call brought or raised; one that does not end is told as something that went through."""
    try:
        with anyio.fail_after(PATIENCE_S):
            return str(await call())
    except TimeoutError:
        return f"worked: a call took more than {PATIENCE_S:.0f} s"
    except (OSError, ExecError) as error:
        return f"refused: {error}"


async def special_files(field: Arena, attack: Attack, against: Against) -> Outcome:
    """FIFOs, sockets, a file of a tebibyte without content, endless devices: no call of the driver waits or swells."""
    await field.run(attack.program, {})
    begin = time.monotonic()
    got = []
    for name in ("fifo", "socket", "sparse", "to-zero", "to-itself"):
        got.append(await attempt(partial(read, field.attacker, f"special/{name}")))
        got.append(await attempt(partial(field.attacker.files.write_bytes, f"special/{name}", b"x", append=True)))
    got.append(await attempt(partial(field.attacker.files.search, "x", path="special")))
    went_through = [text for text in got if text.startswith("worked")]
    harm = await mended(field)
    if went_through or harm:
        return Outcome("not given", harm or went_through[0][:100])
    return Outcome("prevented", f"{time.monotonic() - begin:.1f} s")


async def read(slot: Slot, path: str) -> str:
    """Read a file whole; more than a read may bring has gone through."""
    size = len(await slot.files.read_bytes(path))
    return f"worked: {size} bytes were read" if size > READ_LIMIT_BYTES else f"{size} bytes"


async def hostile_names(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Its processes, as `hermes-exec` shows them to a user at a terminal."""
    slot = field.attacker
    await slot.spawn(["sh", "-c", "sleep 1000; :", HOSTILE])
    text, _ = await to_thread.run_sync(shown, "shell", "--slot", slot.id, "ps")
    if "title" not in text:
        return Outcome("not tried", f"ps showed {text[-200:]!r}")
    if OBEYED.search(text):
        return Outcome("not given", "ps showed an escape sequence")
    return Outcome("prevented", "ps")


CALLS = (
    Attack(
        "links in calls",
        "files",
        "plants links where the driver reads, writes, copies, moves, searches, uploads and downloads",
        "files.links",
        ("neighbour", "host"),
        by=follow_links,
        succeeds_alone=False,
    ),
    Attack(
        "races in calls",
        "files",
        "keeps swapping a directory and a link while calls of the driver go through it",
        "files.swap",
        ("neighbour", "host"),
        by=race,
        succeeds_alone=False,
    ),
    Attack(
        "special files",
        "files",
        "plants FIFOs, sockets, endless devices and a sparse file of 1 TiB to block or bloat calls of the driver",
        "files.special",
        ("driver",),
        by=special_files,
        succeeds_alone=False,
    ),
    Attack(
        "names at a terminal",
        "files",
        "gives processes names with terminal escapes, for a user of `hermes-exec shell --slot`",
        against=("driver",),
        by=hostile_names,
        succeeds_alone=False,
    ),
    Attack(
        "the runner's socket",
        "protocol",
        "sends garbage, oversized frames and foreign ids, and holds 100 silent connections",
        "protocol.runner_socket",
        ("runner",),
        succeeds_alone=False,
    ),
)
