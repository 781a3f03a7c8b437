"""One host: the runner is installed there once, and starts, reports and ends sandboxes."""

from __future__ import annotations

import contextlib
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
from hermes_exec.backends.host_gpus import gpus_command, parse_gpu_slots
from hermes_exec.backends.owner import to_json
from hermes_exec.backends.runner_binary import ARCHITECTURES, RunnerBinary, find_runner
from hermes_exec.backends.ssh.config import SSHConfig, SSHHost
from hermes_exec.backends.ssh.errors import CLOSED, unavailable_error
from hermes_exec.backends.ssh.openssh import OpenSSH, has_openssh
from hermes_exec.backends.ssh.script import CompletedCommand, HostScript, StreamAfter
from hermes_exec.backends.ssh.transport import Transport
from hermes_exec.errors import BackendUnavailable, ConfigError, LaunchError

logger = logging.getLogger(__name__)
ANSWER_TIMEOUT_S = 60.0
INSTALL_TIMEOUT_S = 600.0
MAX_CALLS = 16
"""Calls to a host that may run at once; each occupies a thread and a session of the connection."""
PROBE = Path(__file__).with_name("probe.sh")


class HostFacts(NamedTuple):
    """Facts of a host from its probe."""

    runner: str
    base: str
    gpu_slots: int | None
    """How many slots its GPUs allow; None if no GPUs are requested."""


class Host:
    """One host. Its methods block; `limiter` is for the threads that call them."""

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
        """Install the runner on the host and return the host's facts.

        Raises:
            BackendUnavailable: If the host is unreachable or not usable.
            ConfigError: If no directory there is usable, or the host has not the requested GPUs.
            LaunchError: If the runner cannot be installed.
        """
        with self._lock:
            if self._facts is None:
                self._facts = self._probe()
            return self._facts

    def _probe(self) -> HostFacts:
        """Find a directory with room for the runner, install the runner there if it is missing, and return the facts.

        One login, and another one for an installation: start-up files of a login may take seconds.
        """
        wanted = [word for arch, runner in _runners().items() for word in (arch, runner.sha256, str(_size(runner)))]
        done = self._run(PROBE.read_text("utf-8"), self._config.base_dir or "", self._config.cache_dir or "", *wanted)
        facts = dict(line.split(" ", 1) for line in output_lines(done) if " " in line)
        if facts.get("system") != "Linux":
            system = facts.get("system") or (done.stdout + done.stderr).decode("utf-8", "replace")[-500:]
            raise BackendUnavailable(f"ssh {self.name}: sandboxes need Linux, and its shell reports {system!r}")
        why = facts.get("unsafe", "set base_dir")
        if "base" not in facts:
            where = self._config.base_dir or "$TMPDIR, /tmp, /var/tmp and /dev/shm"
            raise ConfigError(f"ssh {self.name}: no program can be put and run in {where}: {why}")
        try:
            runner = find_runner("linux", facts.get("arch"))
        except BackendUnavailable as error:
            raise BackendUnavailable(f"ssh {self.name}: {error}") from error
        if "cache" not in facts:
            where = self._config.cache_dir or "~/.cache, /var/tmp, /tmp and /dev/shm"
            why = facts.get("unsafe", "set cache_dir")
            problem = (
                f"no private directory with {_size(runner) >> 20} MiB for the runner, in which it can run, in {where}"
            )
            raise ConfigError(f"ssh {self.name}: {problem}: {why}")
        path = f"{facts['cache']}/runner-{runner.sha256}"
        if "installed" not in facts:
            self._install(path, runner)
        gpu_slots = None
        if (request := self._config.gpu_request) is not None:
            answer = self._parse(self._run(f"exec {shlex.join([path, *gpus_command(request)])}"))
            gpu_slots = parse_gpu_slots(answer, f"ssh {self.name}")
        return HostFacts(path, facts["base"], gpu_slots)

    def _install(self, path: str, runner: RunnerBinary) -> None:
        data, part = runner.path.read_bytes(), f"{path}.{secrets.token_hex(4)}"
        new, old = shlex.quote(part), shlex.quote(path)
        take = f"head -c {len(data)} >{new} && chmod 700 {new} && mv {new} {old} && {old} sha256"
        done = self._run(f"umask 077; {take} || {{ rm -f {new}; exit 1; }}", stdin=data, timeout_s=INSTALL_TIMEOUT_S)
        if output_lines(done) == [runner.sha256]:
            logger.info("the runner was installed on %s: %s", self.name, path)
            return
        self._run(f"rm -f {new} {old}")
        why = (
            done.stderr.decode("utf-8", "replace").strip()[-500:] or "it was damaged on the way, or cannot be executed"
        )
        raise LaunchError(f"ssh {self.name}: the runner cannot be put at {path}: {why}")

    def start(self, labels: Labels, lease_s: float) -> tuple[str, FdStream]:
        """Start a sandbox and attach to it in the same login. Return its base directory and the stream.

        Raises like `prepare`, and LaunchError with the runner's message.
        """
        facts = self.prepare()
        base = f"{facts.base.rstrip('/')}/hermes-exec-{secrets.token_hex(6)}/base"
        words = [facts.runner, "start", "--base", base, "--owner", to_json(labels), "--lease-s", str(lease_s)]
        script = HostScript(f"exec {shlex.join(words)} </dev/null", then=self._program(base, ["attach"]))
        opened = self._transport.open(script)
        stream = StreamAfter(opened.stream, script)
        try:
            done = stream.wait_script(ANSWER_TIMEOUT_S)
            if done is None:
                raise unavailable_error(self._host, opened.read_errors() or CLOSED)
            self._parse(done)
        except TimeoutError:
            stream.close_now()
            raise unavailable_error(self._host, f"timeout: no answer within {ANSWER_TIMEOUT_S:g} s") from None
        except BaseException:
            stream.close_now()
            raise
        return base, stream

    def status(self, base: str) -> Mapping[str, Any]:
        """Return the runner's report on a sandbox. Raises like `prepare`."""
        return dict(self._ask("status", "--base", base))

    def end(self, base: str) -> bool:
        """End a sandbox, remove its directory, and return whether nothing is left. Raises like `prepare`."""
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
        """Return the name of a sandbox from its base directory."""
        return f"{self.name}:{base.rsplit('/', 2)[1]}"

    def sandboxes(self) -> list[Mapping[str, Any]]:
        """Return the runner's reports on this user's sandboxes."""
        return list(self._ask("list", "--base", self.prepare().base))

    def open(self, base: str, argv: Sequence[str]) -> FdStream:
        """Open a stream to the runner's program."""
        script = HostScript("", then=self._program(base, argv))
        return StreamAfter(self._transport.open(script).stream, script)

    def _program(self, base: str, argv: Sequence[str]) -> str:
        return shlex.join([self.prepare().runner, *argv, "--base", base])

    def close(self) -> None:
        """Close the connection."""
        if self._open_transport is not None:
            self._open_transport.close()

    def _run(
        self, text: str, *arguments: str, stdin: bytes = b"", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> CompletedCommand:
        return self._transport.run(HostScript(text, *arguments), stdin, timeout_s)

    def _ask(self, *argv: str) -> Any:  # noqa: ANN401 -- JSON of the runner
        return self._parse(self._run(f"exec {shlex.join([self.prepare().runner, *argv])}"))

    def _parse(self, done: CompletedCommand) -> Any:  # noqa: ANN401 -- JSON of the runner
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            with self._lock:
                self._facts = None  # the runner may have been removed: the next call installs it again
            errors = done.stderr.decode("utf-8", "replace").strip()[-500:]
            raise LaunchError(f"ssh {self.name}: the runner did not answer ({done.code}): {errors}") from None
        if isinstance(answer, dict) and "error" in answer:
            raise LaunchError(f"ssh {self.name}: {answer['error']}")
        return answer


def _runners() -> dict[str, RunnerBinary]:
    """Return the runners of this installation by the architecture of a Linux host, in uname's terms."""
    runners = {}
    for arch in ARCHITECTURES:
        with contextlib.suppress(BackendUnavailable):
            runners[arch] = find_runner("linux", arch)
    return runners


def _size(runner: RunnerBinary) -> int:
    return runner.path.stat().st_size


def transport_for(config: SSHConfig, host: SSHHost) -> Transport:
    """Return the transport to a host: the configured one, or an installed one.

    Raises:
        BackendUnavailable: If it is not installed.
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


def output_lines(done: CompletedCommand) -> list[str]:
    """Return the lines of a script's output."""
    return done.stdout.decode("utf-8", "replace").splitlines()
