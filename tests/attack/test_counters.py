"""One slot that takes all it is given of what the kernel counts by user leaves enough for all others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from tests.attack.counters import MOST, Taken, take_all
from tests.conftest import require_engine
from tests.support import sshd
from tests.support.nomad_agent import Agent
from tests.support.ordinary_user import account, run_as_ordinary_user

pytestmark = [pytest.mark.timeout(300)]
OWN = {"slot_root": "own", "max_sandboxes": 1}
SIGNALS, INSTANCES, TERMINALS, QUEUES = 1024, 128, 64, 10


FULL_QUEUE = """
import resource
resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
from hermes_exec import SandboxPool
with SandboxPool("local", slots_per_sandbox=2) as pool, pool.slots(2) as slots:
    for slot in slots:
        print(slot.run("kill -TERM $$").signal)
"""


def check(taken: Taken) -> None:
    """Nobody lacks anything, and the attacker got no more than a slot may."""
    assert {name: found for name, found in taken.items() if 0 in found.values() and name != "timers"} == {}
    assert {found[who] for found in taken.values() for who in ("neighbour", "second pool", "driver")} <= {1, 5}
    most = {name: found["attacker"] for name, found in taken.items()}
    assert most["signals"] + most["timers"] <= SIGNALS
    assert most["queues"] <= QUEUES, "of those of 80 KiB"
    assert most["inotify"] <= INSTANCES
    assert set(most) == set(MOST)


def check_terminals(taken: Taken) -> None:
    """Where a slot has terminals of its own, it has few of the machine's."""
    assert taken["terminals"]["attacker"] == TERMINALS


def needs_root() -> None:
    """Skip as an ordinary user."""
    if os.geteuid() != 0:
        pytest.skip("not root")


def test_slots_start_where_the_queue_of_signals_is_full() -> None:
    done = subprocess.run([sys.executable, "-c", FULL_QUEUE], capture_output=True, timeout=120, check=True)
    assert done.stdout == b"15\n15\n"


def test_counters_of_root_on_this_host() -> None:
    needs_root()
    taken = anyio.run(take_all, "local", {})
    check(taken)
    check_terminals(taken)


def test_counters_of_an_ordinary_user_on_this_host() -> None:
    """Its own programs are counted with its slots: of each a slot gets a quarter at most."""
    needs_root()
    seen = json.loads(run_as_ordinary_user("tests.attack.counters", "local", "{}"))
    assert seen["uid"] != 0
    check(seen["taken"])
    check_terminals(seen["taken"])
    assert seen["taken"]["inotify"]["attacker"] <= INSTANCES // 4
    assert seen["taken"]["queues"]["attacker"] <= QUEUES // 4


@pytest.mark.docker
def test_counters_of_roots_of_their_own_in_a_container(docker_image: Callable[[str], str]) -> None:
    taken = anyio.run(take_all, "docker", {"image": docker_image("debian"), **OWN})
    check(taken)
    check_terminals(taken)


@pytest.mark.docker
@pytest.mark.whole
def test_counters_of_uids_of_their_own_in_a_container(docker_image: Callable[[str], str]) -> None:
    check(anyio.run(take_all, "docker", {"image": docker_image("debian"), "slot_root": "shared", "max_sandboxes": 1}))


@pytest.mark.ssh
@pytest.mark.whole
@pytest.mark.parametrize("ordinary", [False, True], ids=["root", "ordinary"])
def test_counters_over_ssh(*, ordinary: bool) -> None:
    require_engine("ssh")
    needs_root()

    def seen(**options: Any) -> Taken:
        return anyio.run(take_all, "ssh", options)

    if not ordinary:
        with sshd.server() as server:
            taken = seen(**server.options())
    else:
        with account() as user, sshd.server(user) as server:
            taken = seen(**server.options())
            assert taken["inotify"]["attacker"] <= INSTANCES // 4
    check(taken)
    check_terminals(taken)


@pytest.mark.singularity
@pytest.mark.whole
def test_counters_in_a_container_of_apptainer(singularity_image: Callable[[str], str]) -> None:
    needs_root()
    taken = anyio.run(take_all, "singularity", {"image": singularity_image("debian"), **OWN})
    check(taken)
    check_terminals(taken)


@pytest.mark.nomad
@pytest.mark.singularity
@pytest.mark.whole
def test_counters_in_an_allocation_of_nomad(nomad_agent: Agent, singularity_image: Callable[[str], str]) -> None:
    options = nomad_agent.options(driver="singularity", image=singularity_image("debian"), **OWN)
    taken = anyio.run(partial(take_all, "nomad", options))
    check(taken)
    check_terminals(taken)
