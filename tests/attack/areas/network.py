"""Attacks by the network; only loopback addresses are dialled."""

from __future__ import annotations

from tests.attack.model import Attack

NETWORK = (
    Attack(
        "ports",
        "network",
        "connects to its TCP and UDP ports on loopback, IPv4 and IPv6",
        "network.ports",
        ("neighbour", "host"),
        why="slots with the network on share their box's loopback, and on `local` the host's. "
        "`network=False` gives each slot on `namespaces` its own.",
    ),
    Attack(
        "ports, network off",
        "network",
        "the same where the slot has `network=False`",
        "network.ports",
        ("neighbour", "host"),
        network=False,
        why="at `uid` slots share the box's network namespace; the box has nothing but loopback then.",
    ),
    Attack(
        "abstract sockets, network off",
        "network",
        "connects to its abstract socket where the slot has `network=False`",
        "ipc.abstract_socket",
        ("neighbour", "host"),
        network=False,
    ),
    Attack(
        "taking ports",
        "network",
        "listens on the port that it listens on",
        "network.take_over_ports",
        ("neighbour", "host"),
        succeeds_alone=False,
    ),
    Attack(
        "raw sockets",
        "network",
        "opens sockets that see and forge what passes by",
        "network.listen_in",
        ("neighbour",),
        succeeds_alone=False,
        why="root in a container has `CAP_NET_RAW` by Docker's defaults, and boxes share Docker's bridge: "
        '`cap_drop=("NET_RAW",)`, a network of their own, or `network=False`.',
    ),
    Attack(
        "interfaces",
        "network",
        "gives the loopback interface another address",
        "network.reconfigure",
        ("neighbour",),
        succeeds_alone=False,
    ),
    Attack(
        "its network",
        "network",
        "goes over into the network namespace of other processes",
        "network.other_namespace",
        ("neighbour", "host"),
        network=False,
        succeeds_alone=False,
    ),
    Attack(
        "nothing but `lo`",
        "network",
        "looks for interfaces, routes and neighbours where the slot has `network=False`",
        "network.interfaces",
        ("host",),
        network=False,
        succeeds_alone=False,
    ),
    Attack(
        "other families",
        "network",
        "opens sockets of families that no network namespace holds, where the slot has `network=False`",
        "network.other_families",
        ("host",),
        network=False,
        succeeds_alone=False,
        why="`AF_VSOCK` leads from a virtual machine to its hypervisor and is in no network namespace. At `namespaces` "
        "commands get no such sockets; in Docker the engine's seccomp profile decides, and newer ones refuse them.",
    ),
)
