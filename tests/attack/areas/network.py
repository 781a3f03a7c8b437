"""Attacks by the network; only loopback addresses are dialled."""

from __future__ import annotations

import ipaddress
import json

from tests.attack.arena import DIRECTORY, Arena, first_line
from tests.attack.fire import loot_in
from tests.attack.model import Against, Attack, Outcome


async def over_the_bridge(field: Arena, attack: Attack, against: Against) -> Outcome:
    """The neighbour listens on all its interfaces; only addresses that its own sandbox has are dialled."""
    argv = ["python3", "-B", f"{field.slot.workspace}/{DIRECTORY}/network.py", "serve_everywhere"]
    listener = await field.slot.spawn([*argv, json.dumps({"secret": field.neighbour.secrets[0]})])
    try:
        told = await first_line(listener.stdout)
        loopback = [each for each in told["addresses"] if ipaddress.ip_address(each).is_loopback]
        bridge = [each for each in told["addresses"] if ipaddress.ip_address(each).is_private and each not in loopback]
        target = {"port": told["port"], "addresses": bridge if field.level.backend == "docker" else loopback}
        result = await field.run(attack.program, target)
    finally:
        await listener.kill()
    if loot := loot_in(field, against, result.stdout):
        return Outcome("not given", loot)
    return Outcome("prevented", f"{target['addresses']}: {result.stderr[-200:]}")


NETWORK = (
    *(
        Attack(
            f"the neighbour's sandbox{'' if network else ', network off'}",
            "network",
            "connects to the neighbour's server on the address of its sandbox"
            + ("" if network else ", where the slots have `network=False`"),
            "network.addresses",
            by=over_the_bridge,
            network=network,
            why="slots of one sandbox share its addresses, and Docker's bridge lets its containers reach each other: "
            "`network=False`, or a `network_mode` that names a network made with "
            "`com.docker.network.bridge.enable_icc=false`. Sandboxes of Apptainer have the host's addresses."
            if network
            else "at `uid` slots share the sandbox's network namespace; nothing else is in it.",
            succeeds_alone=False,
        )
        for network in (True, False)
    ),
    Attack(
        "ports",
        "network",
        "connects to the victim's TCP and UDP ports on loopback, IPv4 and IPv6",
        "network.ports",
        ("neighbour", "host"),
        why="slots with the network on share their sandbox's loopback, and on `local` and Apptainer the host's. "
        "`network=False` gives each slot on `namespaces` its own.",
    ),
    Attack(
        "ports, network off",
        "network",
        "the same from a slot with `network=False`",
        "network.ports",
        ("neighbour", "host"),
        network=False,
        why="at `uid` slots share the sandbox's network namespace; the sandbox has nothing but loopback then.",
    ),
    Attack(
        "abstract sockets, network off",
        "network",
        "connects to the victim's abstract socket from a slot with `network=False`",
        "ipc.abstract_socket",
        ("neighbour", "host"),
        network=False,
    ),
    Attack(
        "taking ports",
        "network",
        "listens on a port of the victim",
        "network.take_over_ports",
        ("neighbour", "host"),
        succeeds_alone=False,
    ),
    Attack(
        "raw sockets",
        "network",
        "opens sockets that read and forge packets",
        "network.listen_in",
        ("neighbour",),
        succeeds_alone=False,
        why="root in a container has `CAP_NET_RAW` by Docker's defaults, and sandboxes share Docker's bridge: "
        '`cap_drop=("NET_RAW",)`, a network of their own, or `network=False`.',
    ),
    Attack(
        "interfaces",
        "network",
        "adds an address to the loopback interface",
        "network.reconfigure",
        ("neighbour",),
        succeeds_alone=False,
    ),
    Attack(
        "its network",
        "network",
        "enters the network namespace of other processes",
        "network.other_namespace",
        ("neighbour", "host"),
        network=False,
        succeeds_alone=False,
    ),
    Attack(
        "nothing but `lo`",
        "network",
        "looks for interfaces, routes and neighbours in a slot with `network=False`",
        "network.interfaces",
        ("host",),
        network=False,
        succeeds_alone=False,
    ),
    Attack(
        "other families",
        "network",
        "opens sockets of families outside of network namespaces, in a slot with `network=False`",
        "network.other_families",
        ("host",),
        network=False,
        succeeds_alone=False,
        why="`AF_VSOCK` leads from a virtual machine to its hypervisor and is in no network namespace. At `namespaces` "
        "commands get no such sockets; in Docker the engine's seccomp profile decides, and newer ones refuse them.",
    ),
)
