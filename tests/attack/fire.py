"""Fires attacks on a level and judges what came of them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hermes_exec.errors import ExecError
from hermes_exec.results import RunResult
from tests.attack.arena import LONG_S, Arena, arena
from tests.attack.confined import unconfined
from tests.attack.levels import Level
from tests.attack.model import Against, Attack, Outcome, Row, together

# VFS_CAP_REVISION_2 with the effective bit; all capabilities that there are.
ALL_CAPABILITIES = (0x02000001).to_bytes(4, "little") + b"\xff\xff\xff\xff\0\0\0\0" + b"\xff\x01\0\0\0\0\0\0"


async def fire(
    level: Level,
    rows: Sequence[Row],
    image: Callable[[], str],
    planted: Path | None,
    seconds: float,
    much: int,
    rounds: int | None = None,
) -> dict[str, Outcome]:
    """Fire these rows, those with the network first; after one that breaks the next has a fresh arena."""
    outcomes: dict[str, Outcome] = {}
    for network in (True, False):
        waiting = deque(row for row in rows if row.attack.network == network)
        while waiting:
            async with arena(level, planted, image, seconds, much, network=network) as field:
                await fire_in(field, waiting, rounds, outcomes)
    return outcomes


async def fire_in(field: Arena, waiting: deque[Row], rounds: int | None, outcomes: dict[str, Outcome]) -> None:
    """Fire what waits, to the end or to the first that breaks, whose outcome says why."""
    while waiting:
        row = waiting.popleft()
        told = f"{field.level.id}: {row.id}"
        times = row.attack.rounds if field.seconds >= LONG_S else 1
        try:
            outcome = together([await fire_one(field, row) for _ in range(min(times, rounds or times))])
        except Exception:  # noqa: BLE001 - whatever it is, it is the outcome of this row alone
            outcomes[row.id] = Outcome("not tried", traceback.format_exc())
            print(f"{told}: {outcomes[row.id].detail}", file=sys.stderr, flush=True)
            return
        outcomes[row.id] = outcome
        print(f"{told}: {outcome.verdict}: {outcome.detail.strip()[-100:]!r}", file=sys.stderr, flush=True)


async def fire_one(field: Arena, row: Row) -> Outcome:
    """Fire one attack from a fresh slot, and put the victims in order again if it hurt them."""
    attack = row.attack
    async with field.an_attacker():
        if attack.by is not None:
            return await attack.by(field, attack, row.against)
        return await by_program(field, attack, row.against)


async def by_program(field: Arena, attack: Attack, against: Against) -> Outcome:
    """Run the attack's program in the attacker's slot, and judge by its loot and by the harm that was done."""
    if why := await unconfined(field, attack.proof):
        return Outcome("not given", f"not fired: {why}")
    result: RunResult | None = None
    trouble = ""
    try:
        result = await field.run(attack.program, field.target(against))
    except ExecError as error:
        trouble = f"the attacker's own call: {type(error).__name__}"
    gone = await own_trouble(field)
    harm = await mended(field)
    text = result.stdout + result.stderr if result is not None else ""
    loot = loot_in(field, against, text)
    if loot and attack.own_sandbox and field.level.whole_image and not harm:
        return Outcome("contained", loot)
    if loot:
        return Outcome("not given", loot)
    if harm:
        return Outcome("not given", harm)
    if gone or trouble or result is None or result.signal is not None:
        return Outcome("contained", gone or trouble or "the attacker ended itself")
    if "done" not in result.stdout:
        raise AssertionError(f"the attack {attack.name} is broken: {result.stdout[-500:]} {result.stderr[-2000:]}")
    return Outcome("prevented", text[-200:])


async def control_all(level: Level, rows: Sequence[Row], image: Callable[[], str]) -> dict[str, str]:
    """What the attacks achieve where nothing is between them and their targets: in the neighbour's own slot."""
    achieved: dict[str, str] = {}
    for network in (True, False):
        here = [row for row in rows if row.attack.network == network]
        if here:
            async with arena(level, None, image, network=network) as field:
                for row in here:
                    achieved[row.id] = await control(field, row.attack)
    return achieved


async def control(field: Arena, attack: Attack) -> str:
    """What one attack achieves there; empty: nothing."""
    try:
        result = await field.run(attack.program, field.target("neighbour"), slot=field.slot)
    except ExecError as error:
        await field.replace_victims()
        return type(error).__name__
    loot = loot_in(field, "neighbour", result.stdout + result.stderr)
    return await mended(field) or loot


def loot_in(field: Arena, against: Against, text: str) -> str:
    """What an attacker got, as far as it shows in what it printed."""
    holders = [
        victim for name, victim in (("neighbour", field.neighbour), ("host", field.host)) if against in (name, "runner")
    ]
    if any(secret in text for victim in holders for secret in victim.secrets):
        return "a secret was read"
    told = [line.removeprefix("worked: ") for line in text.splitlines() if line.startswith("worked: ")]
    return "; ".join(dict.fromkeys(told))


async def own_trouble(field: Arena) -> str:
    """Whether the attacker has ended its own slot."""
    try:
        done = await field.attacker.run(["true"], timeout_s=30)
    except ExecError as error:
        return f"its own slot: {type(error).__name__}"
    return "" if done.exit_code == 0 else f"its own slot: exit code {done.exit_code}"


async def mended(field: Arena) -> str:
    """The harm that was done; a neighbour that was hurt is replaced by a fresh one."""
    harm = await field.harm()
    if harm:
        await field.replace_victims()
    return harm


@contextmanager
def planted_programs() -> Iterator[Path | None]:
    """A directory with copies of `cat` that make root of whoever runs them: one set-user-id, one with all capabilities.

    Only root can make them; for everybody else there is none.
    """
    if os.geteuid() != 0:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="attack-planted-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        for program in ("setuid-cat", "capable-cat"):
            shutil.copyfile("/bin/cat", directory / program)
            (directory / program).chmod(0o755)
        (directory / "setuid-cat").chmod(0o4755)
        os.setxattr(directory / "capable-cat", "security.capability", ALL_CAPABILITIES)
        yield directory
