"""Attacks through what processes share besides files."""

from __future__ import annotations

from tests.attack.model import Attack

IPC = (
    Attack(
        "abstract sockets",
        "ipc",
        "connects to the victim's abstract Unix socket",
        "ipc.abstract_socket",
        ("neighbour", "host"),
    ),
    Attack(
        "abstract datagrams",
        "ipc",
        "sends to the victim's abstract datagram socket and reads the reply",
        "ipc.abstract_datagrams",
        ("neighbour", "host"),
    ),
    Attack(
        "path sockets",
        "ipc",
        "connects to a socket in the victim's temporary directory",
        "ipc.path_socket",
        ("neighbour", "host"),
    ),
    Attack(
        "FIFOs",
        "ipc",
        "reads a world-readable FIFO in the victim's temporary directory",
        "ipc.named_pipe",
        ("neighbour", "host"),
    ),
    Attack(
        "`/dev/shm`, `/tmp`, `/var/tmp`",
        "ipc",
        "reads the victim's world-readable files there",
        "ipc.shared_directories",
        ("neighbour", "host"),
        why="at `uid` they are the sandbox's, and file modes decide. Programs that need it closed set an umask of 077, "
        "write to `$TMPDIR`, or run on a higher level.",
    ),
    Attack(
        "System V memory",
        "ipc",
        "attaches the victim's world-readable shared memory",
        "ipc.system_v_memory",
        ("neighbour", "host"),
        why="at `uid` slots share the sandbox's IPC namespace, and the modes of the objects decide.",
    ),
    Attack(
        "System V messages",
        "ipc",
        "takes a message out of the victim's world-readable queue",
        "ipc.system_v_messages",
        ("neighbour", "host"),
        why="as System V memory.",
    ),
    Attack(
        "System V semaphores",
        "ipc",
        "finds the victim's semaphores",
        "ipc.system_v_semaphores",
        ("neighbour", "host"),
        why="as System V memory.",
    ),
    Attack(
        "POSIX queues",
        "ipc",
        "takes a message out of the victim's world-readable queue",
        "ipc.posix_queue",
        ("neighbour", "host"),
        why="as System V memory.",
    ),
    Attack(
        "keyrings", "ipc", "reads keys of the victim's session and user keyrings", "ipc.keyrings", ("neighbour", "host")
    ),
    Attack(
        "TIOCSTI",
        "ipc",
        "types into terminals of others",
        "ipc.type_into_terminals",
        ("neighbour",),
        succeeds_alone=False,
    ),
    Attack("locks", "ipc", "locks files that others wait for", "ipc.locks", ("neighbour", "host"), own_sandbox=True),
)
