"""Attacks by the network. Only loopback addresses are dialled."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from tests.attack.programs.tenant import Target, main, read, refused, show, syscall, worked

SIOCGIFADDR, SIOCSIFADDR = 0x8915, 0x8916


def ports(target: Target) -> None:
    for host, key in (("127.0.0.1", "tcp"), ("::1", "tcp6"), ("127.0.0.2", "tcp"), ("::ffff:127.0.0.1", "tcp")):
        with refused(), socket.create_connection((host, int(target[key])), timeout=3) as peer:
            show(peer.recv(200))
    with refused(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(3)
        peer.connect(("127.0.0.1", int(target["udp"])))
        peer.send(b"x")
        show(peer.recv(200))


def serve_everywhere(target: Target) -> None:
    """What a neighbour may do: listen on all its interfaces. Says where it can be reached."""
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        addresses = []
        for _, name in socket.if_nameindex():
            with refused(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                answer = fcntl.ioctl(control, SIOCGIFADDR, struct.pack("256s", name.encode()))
                addresses.append(socket.inet_ntoa(answer[20:24]))
        print(json.dumps({"port": listener.getsockname()[1], "addresses": addresses}), flush=True)
        while True:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(str(target["secret"]).encode())


def addresses(target: Target) -> None:
    """Connect to the addresses of the neighbour's sandbox, which the test took from that sandbox."""
    for host in target["addresses"]:
        with refused(), socket.create_connection((host, int(target["port"])), timeout=3) as peer:
            show(peer.recv(200))
            worked("a port of the neighbour's sandbox")


def take_over_ports(target: Target) -> None:
    """Listen on the target's own port, to get what is meant for it."""
    for host in ("127.0.0.1", "0.0.0.0"):
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with refused(), socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, option, 1)
                listener.bind((host, int(target["tcp"])))
                listener.listen()
                if int(target["tcp"]) in _listening():
                    worked(f"listening on {host}:{target['tcp']} as well")


def _listening() -> list[int]:
    """Ports of listeners that are not ours alone: those that are there twice."""
    seen = [
        int(line.split()[1].rpartition(":")[2], 16)
        for line in read("/proc/net/tcp", 1 << 20).decode().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    return [port for port in seen if seen.count(port) > 1]


def listen_in(target: Target) -> None:
    """Raw and packet sockets, which see what passes by and can forge it."""
    for family, kind, protocol in (
        (socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
        (socket.AF_PACKET, socket.SOCK_DGRAM, 0x0300),
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW),
    ):
        with refused(), socket.socket(family, kind, protocol):
            worked(f"a raw socket of family {family}")


def reconfigure(target: Target) -> None:
    """Give the loopback interface another address."""
    with refused(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        address = struct.pack("16sHH4s8x", b"lo:9", socket.AF_INET, 0, socket.inet_aton("127.0.0.9"))
        fcntl.ioctl(control, SIOCSIFADDR, address)
        worked("an address was added")


def interfaces(target: Target) -> None:
    """What of a network is there besides the loopback interface; nothing is sent."""
    names = {line.split(":")[0].strip() for line in read("/proc/net/dev").decode().splitlines()[2:]}
    names |= {name for _, name in socket.if_nameindex()}
    for name in names - {"lo"}:
        worked(f"interface {name}")
    for table in ("/proc/net/route", "/proc/net/ipv6_route", "/proc/net/arp"):
        with refused():
            for line in read(table, 1 << 20).decode().splitlines():
                if line and not line.startswith(("Iface", "IP address")) and line.split()[-1] != "lo":
                    worked(f"{table}: {line}")


def other_families(target: Target) -> None:
    """Sockets of families that leave a network namespace; nothing is connected."""
    for name in ("AF_VSOCK", "AF_BLUETOOTH", "AF_NFC", "AF_QIPCRTR"):
        with refused(), socket.socket(getattr(socket, name, {"AF_NFC": 39}.get(name, 42)), socket.SOCK_STREAM):
            worked(f"a socket of {name}")


def other_namespace(target: Target) -> None:
    """Go over into the network of another process."""
    for pid in [*target["pids"], 1]:
        with refused():
            descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            own = os.stat("/proc/self/ns/net")
            if os.fstat(descriptor).st_ino != own.st_ino:
                syscall("setns", descriptor, 0)
                worked(f"in the network of process {pid}")


main(globals())
