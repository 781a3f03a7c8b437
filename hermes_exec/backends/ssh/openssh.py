"""The system's OpenSSH client: one connection to each host for all commands and streams. It ends with this program."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from hermes_exec.backends.process import open_child, tie_to_parent
from hermes_exec.backends.ssh.config import SSHConfig, SSHHost
from hermes_exec.backends.ssh.errors import CLOSED, unavailable_error
from hermes_exec.backends.ssh.script import CompletedCommand, HostScript
from hermes_exec.backends.ssh.transport import Attempts, ClientStream
from hermes_exec.backends.strict_path import make_private_directory

LONGEST_TMPDIR = 52
"""Characters: the path of the client's socket below it has up to 51 more, and the system allows 103 (107 on Linux)."""
CLIENT_FAILURE = 255
"""Exit code of the client for its own failures."""
CLIENT_END_TIMEOUT_S = 5.0
"""Longest wait for the end of a client whose output has ended."""
ASKPASS = '#!/bin/sh\nexec cat "$HERMES_EXEC_PASSPHRASE_FILE"\n'


class OpenSSH:
    """See `Transport`. The client's messages go into a log in a private directory."""

    def __init__(self, config: SSHConfig, host: SSHHost) -> None:
        self._config = config
        self._host = host
        self._attempts = Attempts()
        self._directory: Path | None = None
        self._master: subprocess.Popen[bytes] | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def run(self, script: HostScript, stdin: bytes, timeout_s: float) -> CompletedCommand:
        """See `Transport.run`."""
        argv, env = self._command(script), self._config.helper_environment()
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(stdin)
            given.seek(0)
            with subprocess.Popen(
                argv, stdin=given, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True
            ) as child:
                self._running.add(child)
                if self._closed:
                    child.kill()
                assert child.stdout is not None
                try:
                    output = script.read(child.stdout.fileno(), timeout_s)
                    if isinstance(output, bytes):
                        child.wait(CLIENT_END_TIMEOUT_S)
                except (TimeoutError, subprocess.TimeoutExpired):
                    raise unavailable_error(self._host, f"timeout: no answer within {timeout_s:g} s") from None
                finally:
                    child.kill()
                    self._running.discard(child)
            if not isinstance(output, bytes):
                return output[0]
            errors.seek(0)
            messages = errors.read()
        if child.returncode in {CLIENT_FAILURE, -signal.SIGKILL}:
            raise unavailable_error(self._host, messages.decode("utf-8", "replace") or CLOSED)
        return CompletedCommand(child.returncode, output, messages)

    def open(self, script: HostScript) -> ClientStream:
        """See `Transport.open`."""
        argv = self._command(script)
        log = self._private() / f"stream-{secrets.token_hex(4)}.log"
        child, stream = open_child(argv, log, self._config.helper_environment())
        messages: list[str] = []

        def collect() -> None:
            child.wait()
            with contextlib.suppress(OSError):  # the directory may be gone by then
                messages.append(log.read_text("utf-8", "replace"))
                log.unlink()

        # The stream shows the end of the child; this thread only collects its exit code and messages.
        collector = threading.Thread(target=collect, name="hermes-exec-ssh", daemon=True)
        collector.start()

        def read_errors() -> str:
            collector.join(CLIENT_END_TIMEOUT_S)
            return "".join(messages)

        return ClientStream(stream, read_errors)

    def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        for child in list(self._running):
            child.kill()
        with self._attempts.lock:
            self._end_master()
            self._forget_directory()

    def _forget_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _command(self, script: HostScript) -> list[str]:
        self._connect()
        return [*self._client(), "-o", "ControlMaster=no", "-S", self._socket_option(), self._host.host, script.command]

    def _client(self) -> list[str]:
        config, host = self._config, self._host
        options = {
            "BatchMode": "no" if config.passphrase else "yes",
            "ConnectTimeout": max(1, round(config.connect_timeout_s)),
            "ServerAliveInterval": 5,
            "ServerAliveCountMax": 3,
            "StrictHostKeyChecking": "yes" if config.host_keys == "strict" else "accept-new",
            "UserKnownHostsFile": f'"{config.known_hosts}"' if config.known_hosts else None,
            "Port": host.port,
            "User": host.user,
            "RequestTTY": "no",
            "RemoteCommand": "none",
            "ControlPersist": "no",
            "ClearAllForwardings": "yes",
            "EscapeChar": "none",
            "IgnoreUnknown": "ForkAfterAuthentication,StdinNull",  # of clients before 8.7
            "ForkAfterAuthentication": "no",
            "StdinNull": "no",
        }
        argv = ["ssh"]
        if config.ssh_config:
            argv += ["-F", config.ssh_config]
        identity = host.identity_file or config.identity_file
        if identity:
            argv += ["-i", identity, "-o", "IdentitiesOnly=yes"]
        for name, value in options.items():
            if value is not None:
                argv += ["-o", f"{name}={value}"]
        return argv

    def _private(self) -> Path:
        if self._directory is None:
            too_long = len(tempfile.gettempdir()) > LONGEST_TMPDIR and os.access("/tmp", os.W_OK | os.X_OK)
            self._directory = make_private_directory("hermes-exec-ssh-", "/tmp" if too_long else None)
        return self._directory

    def _socket(self) -> Path:
        return self._private() / "master"

    def _socket_option(self) -> str:
        return str(self._socket()).replace("%", "%%")

    def _connect(self) -> None:
        """Connect if there is no connection.

        Raises:
            BackendUnavailable: If the host is unreachable.
        """
        with self._attempts.attempt():
            if self._closed:
                raise unavailable_error(self._host, CLOSED)
            if self._master is not None and self._master.poll() is None and self._socket().exists():
                return
            self._end_master()
            log = self._private() / "master.log"
            argv = [*self._client(), "-M", "-S", self._socket_option(), "-N", self._host.host]
            with log.open("wb") as file:
                self._master = subprocess.Popen(
                    tie_to_parent(argv, str(log.parent)),
                    env=self._config.helper_environment() | self._askpass(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,
                )
            until = time.monotonic() + self._config.connect_timeout_s + 5.0
            while not self._socket().exists():
                if self._master.poll() is not None or time.monotonic() > until or self._closed:
                    output = log.read_text("utf-8", "replace") or "timeout"
                    self._end_master()
                    raise unavailable_error(self._host, output)
                time.sleep(0.005)
            self._forget_passphrase()

    def _askpass(self) -> dict[str, str]:
        """Return variables that make the client read the passphrase from a private file."""
        if self._config.passphrase is None:
            return {}
        secret, script = self._private() / "passphrase", self._private() / "askpass"
        _write_anew(secret, self._config.passphrase(), 0o600)
        _write_anew(script, ASKPASS, 0o700)
        return {
            "SSH_ASKPASS": str(script),
            "SSH_ASKPASS_REQUIRE": "force",
            "HERMES_EXEC_PASSPHRASE_FILE": str(secret),
        }

    def _end_master(self) -> None:
        self._forget_passphrase()
        if self._master is not None:
            if self._master.stdin is not None:
                self._master.stdin.close()
            # Closing the input is not enough: a forked child of this program may hold its other end too.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(self._master.pid, number)
                    self._master.wait(timeout=5)
            self._master = None
            self._forget_directory()  # the next connection makes its own

    def _forget_passphrase(self) -> None:
        if self._directory is not None:
            for name in ("passphrase", "askpass"):
                (self._directory / name).unlink(missing_ok=True)


def _write_anew(path: Path, text: str, mode: int) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)


def has_openssh() -> bool:
    """Return whether an OpenSSH client is installed."""
    return shutil.which("ssh") is not None
