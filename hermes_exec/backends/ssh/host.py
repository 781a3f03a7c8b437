"""One host: the runner is brought there once, and starts, tells of and ends sandboxes."""

from __future__ import annotations

import json
import logging
import secrets
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from hermes_exec.aio.streams import FdStream
from hermes_exec.backends.base import Labels
from hermes_exec.backends.owner import to_json
from hermes_exec.backends.runner_binary import RunnerBinary, find_runner
from hermes_exec.backends.ssh.config import SSHConfig, SSHHost
from hermes_exec.backends.ssh.openssh import OpenSSH, has_openssh
from hermes_exec.backends.ssh.transport import CompletedCommand, StreamAfter, Transport
from hermes_exec.errors import BackendUnavailable, ConfigError, LaunchError

logger = logging.getLogger(__name__)
ANSWER_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 600.0
MAX_CALLS = 16
"""Calls to a host that may be under way at once; each occupies a thread and a session of the connection."""
BEGIN = "hermes-exec begins"
"""Before it there may be whatever the start-up files of the user's shell print."""
PROBE = Path(__file__).with_name("probe.sh")


class HostFacts(NamedTuple):
    """What was found out about a host."""

    runner: str
    base: str


class Host:
    """See the module. Its methods block; `limiter` is for the threads that call them."""

    def __init__(self, config: SSHConfig, host: SSHHost) -> None:
        self.name = host.name
        self.slots = host.slots
        self.claim = host.claim
        self.limiter = anyio.CapacityLimiter(MAX_CALLS)
        self._config = config
        self._host = host
        self._lock = threading.RLock()
        self._facts: HostFacts | None = None
        self._open_transport: Transport | None = None

    @property
    def _transport(self) -> Transport:
        with self._lock:
            if self._open_transport is None:
                self._open_transport = transport_for(self._config, self._host)
            return self._open_transport

    def prepare(self) -> HostFacts:
        """Have the runner there.

        Raises:
            BackendUnavailable: the host cannot be reached, or is of another kind.
            ConfigError: no directory there can be used.
            LaunchError: the runner cannot be brought there.
        """
        with self._lock:
            if self._facts is None:
                self._facts = self._probe()
            return self._facts

    def _probe(self) -> HostFacts:
        done = self._run(PROBE.read_text("utf-8"), self._config.base_dir or "")
        facts = dict(line.split(" ", 1) for line in lines(done) if " " in line)
        if facts.get("system") != "Linux":
            system = facts.get("system") or (done.stdout + done.stderr).decode("utf-8", "replace")[-500:]
            raise BackendUnavailable(f"ssh {self.name}: sandboxes need Linux, and its shell says {system!r}")
        why = facts.get("unsafe", "set base_dir")
        if "base" not in facts:
            where = self._config.base_dir or "$TMPDIR, /tmp, /var/tmp and /dev/shm"
            raise ConfigError(f"ssh {self.name}: no program can be put and run in {where}: {why}")
        if "cache" not in facts:
            raise ConfigError(f"ssh {self.name}: no private directory can be made there in which a program runs: {why}")
        try:
            runner = find_runner("linux", facts.get("arch"))
        except BackendUnavailable as error:
            raise BackendUnavailable(f"ssh {self.name}: {error}") from error
        path = f"{facts['cache']}/runner-{runner.sha256}"
        self._install(path, runner)
        return HostFacts(path, facts["base"])

    def _install(self, path: str, runner: RunnerBinary) -> None:
        if self._hash(path) == runner.sha256:
            return
        data, part = runner.path.read_bytes(), f"{path}.{secrets.token_hex(4)}"
        new, old = shlex.quote(part), shlex.quote(path)
        take = f"head -c {len(data)} >{new} && chmod 700 {new} && mv {new} {old} || {{ rm -f {new}; exit 1; }}"
        done = self._run(f"umask 077; {take}", stdin=data, timeout_s=INSTALL_TIMEOUT_S)
        if done.code == 0 and self._hash(path) == runner.sha256:
            logger.info("the runner was brought to %s: %s", self.name, path)
            return
        self._run(f"rm -f {new} {old}")
        why = done.stderr.decode("utf-8", "replace").strip()[-500:] or "it arrived damaged, or cannot be executed"
        raise LaunchError(f"ssh {self.name}: the runner cannot be put at {path}: {why}")

    def _hash(self, path: str) -> str:
        return "".join(lines(self._run(f"{shlex.quote(path)} sha256")))

    def start(self, labels: Labels, lease_s: float) -> str:
        """Start a sandbox; its base directory. Raises as `prepare`, and LaunchError with what the runner said."""
        base = f"{self.prepare().base.rstrip('/')}/hermes-exec-{secrets.token_hex(6)}/base"
        self._ask("start", "--base", base, "--owner", to_json(labels), "--lease-s", str(lease_s))
        return base

    def status(self, base: str) -> Mapping[str, Any]:
        """What the runner's program says of a sandbox. Raises as `prepare`."""
        return dict(self._ask("status", "--base", base))

    def end(self, base: str) -> bool:
        """End a sandbox and remove its directory; whether nothing is left. Raises as `prepare`."""
        left = self._ask("end", "--base", base).get("left")
        if left:
            logger.warning("ssh %s: %s could not be removed", self.name, base)
        return not left

    def signal(self, base: str, number: int) -> None:
        """Send a signal to the runner of a sandbox."""
        pid = self.status(base).get("pid")
        if pid is None:
            raise LaunchError(f"ssh {self.name}: the runner has ended")
        self._run(f"kill -{int(number)} {int(pid)}")

    def sandbox_name(self, base: str) -> str:
        """What a sandbox is called, by its base directory."""
        return f"{self.name}:{base.rsplit('/', 2)[1]}"

    def sandboxes(self) -> list[Mapping[str, Any]]:
        """Those of this user."""
        return list(self._ask("list", "--base", self.prepare().base))

    def open(self, base: str, argv: Sequence[str]) -> FdStream:
        """A stream to the runner's program."""
        command = shlex.join([self.prepare().runner, *argv, "--base", base])
        return StreamAfter(self._transport.open(script(f"echo '{BEGIN}'; exec {command}")), f"{BEGIN}\n".encode())

    def close(self) -> None:
        """Close the connection."""
        if self._open_transport is not None:
            self._open_transport.close()

    def _run(
        self, text: str, *arguments: str, stdin: bytes = b"", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> CompletedCommand:
        return self._transport.run(script(f"echo '{BEGIN}'; {text}", *arguments), stdin, timeout_s)

    def _ask(self, *argv: str) -> Any:  # noqa: ANN401 -- what the runner answers, as JSON has it
        command = shlex.join([self.prepare().runner, *argv])
        done = self._run(f"exec {command}")
        try:
            answer = json.loads("".join(lines(done)))
        except ValueError:
            with self._lock:
                self._facts = None  # it may have been removed: the next call looks again
            errors = done.stderr.decode("utf-8", "replace").strip()[-500:]
            raise LaunchError(f"ssh {self.name}: the runner did not answer ({done.code}): {errors}") from None
        if isinstance(answer, dict) and "error" in answer:
            raise LaunchError(f"ssh {self.name}: {answer['error']}")
        return answer


def transport_for(config: SSHConfig, host: SSHHost) -> Transport:
    """What reaches a host, as the configuration says, or what there is here.

    Raises:
        BackendUnavailable: it is not installed.
    """
    if config.transport != "paramiko" and has_openssh():
        return OpenSSH(config, host)
    if config.transport == "openssh":
        raise BackendUnavailable("there is no OpenSSH client (ssh) here: install it, or transport='paramiko'")
    try:
        from hermes_exec.backends.ssh.paramiko_transport import Paramiko
    except ImportError as error:
        problem = "neither OpenSSH's client nor paramiko is installed: pip install 'hermes-exec[ssh]'"
        raise BackendUnavailable(problem) from error
    return Paramiko(config, host)


def script(text: str, *arguments: str) -> str:
    """A script for `sh`, whatever shell the user has there."""
    return f"exec {shlex.join(['/bin/sh', '-c', text, 'sh', *arguments])}"


def lines(done: CompletedCommand) -> list[str]:
    """What a script said after BEGIN."""
    return done.stdout.decode("utf-8", "replace").rpartition(f"{BEGIN}\n")[2].splitlines()
