"""A connection by paramiko, for machines without an OpenSSH client."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from pathlib import Path
from typing import Any

import paramiko

from hermes_exec.aio.bridge import bridge_calls
from hermes_exec.aio.streams import READ_BYTES
from hermes_exec.backends.helpers import unset_others
from hermes_exec.backends.ssh.config import SSHConfig, SSHHost
from hermes_exec.backends.ssh.errors import CLOSED, unavailable_error
from hermes_exec.backends.ssh.script import CompletedCommand, HostScript
from hermes_exec.backends.ssh.transport import Attempts, ClientStream
from hermes_exec.errors import BackendUnavailable

# Not the obvious code: see docs/why-not-obvious.md ("Paramiko in slices").
SLICE_BYTES = 1 << 20
"""Most bytes in one call: paramiko's time grows with their square."""
KEEPALIVE_S = 5


class AcceptNew(paramiko.MissingHostKeyPolicy):
    """A policy that accepts the key of an unknown host, and keeps it in a file."""

    def __init__(self, known_hosts: Path) -> None:
        self._known_hosts = known_hosts

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """See paramiko."""
        self._known_hosts.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._known_hosts.open("a") as file:
            file.write(f"{hostname} {key.get_name()} {key.get_base64()}\n")


class Paramiko:
    """See `Transport`."""

    def __init__(self, config: SSHConfig, host: SSHHost) -> None:
        self._config = config
        self._host = host
        self._attempts = Attempts()
        self._client: paramiko.SSHClient | None = None
        self._connection: socket.socket | paramiko.ProxyCommand | None = None
        self._closed = False

    def run(self, script: HostScript, stdin: bytes, timeout_s: float) -> CompletedCommand:
        """See `Transport.run`."""
        try:
            with contextlib.closing(
                self._session(script.command if stdin else f"{script.command} </dev/null")
            ) as channel:
                channel.settimeout(timeout_s)
                # The end of input is never sent: if it were late, it would end the whole connection.
                send_all(channel, stdin)
                output = script.output()
                while data := channel.recv(READ_BYTES):
                    if (parts := output.feed(data)) is not None:
                        return parts[0]
                stderr = b"".join(iter(lambda: channel.recv_stderr(READ_BYTES), b""))
                return CompletedCommand(channel.recv_exit_status(), output.kept, stderr)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise unavailable_error(self._host, error_text(error)) from error

    def open(self, script: HostScript) -> ClientStream:
        """See `Transport.open`."""
        try:
            channel = self._session(script.command)
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise unavailable_error(self._host, error_text(error)) from error
        stream = bridge_calls(lambda: channel.recv(READ_BYTES), lambda data: send_all(channel, data), channel.close)
        return ClientStream(stream, lambda: CLOSED)

    def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        """Close the connection, even while it is being opened."""
        for held in (self._client, self._connection):
            if held is not None:
                held.close()

    def _session(self, command: str) -> paramiko.Channel:
        channel = self._transport().open_session(timeout=self._config.connect_timeout_s)
        channel.exec_command(command.encode())
        return channel

    def _transport(self) -> paramiko.Transport:
        with self._attempts.attempt():
            self._check_open()
            transport = None if self._client is None else self._client.get_transport()
            if transport is not None and transport.is_active():
                return transport
            self._drop()
            self._client = paramiko.SSHClient()
            try:
                self._connect(self._client)
                self._check_open()
            except BaseException:
                self._drop()
                raise
            transport = self._client.get_transport()
            if transport is None:
                raise unavailable_error(self._host, "the connection ended at once")
            transport.set_keepalive(KEEPALIVE_S)
            return transport

    def _check_open(self) -> None:
        if self._closed:
            raise unavailable_error(self._host, CLOSED)

    def _connect(self, client: paramiko.SSHClient) -> None:
        config, host = self._config, self._host
        settings = self._read_config()
        self._load_host_keys(client, str(settings.get("userknownhostsfile", "~/.ssh/known_hosts")).split()[0])
        identity = host.identity_file or config.identity_file
        names = [identity] if identity else settings.get("identityfile") or []
        address, port = settings.get("hostname", host.host), int(host.port or settings.get("port", 22))
        self._connection = self._socket(address, port, settings.get("proxycommand"))
        self._check_open()
        client.connect(
            address,
            port,
            username=host.user or settings.get("user"),
            key_filename=[os.path.expanduser(name) for name in names] or None,  # type: ignore[arg-type] # a list is accepted
            passphrase=None if config.passphrase is None else config.passphrase(),
            look_for_keys=not names,
            allow_agent=identity is None,
            sock=self._connection,
            timeout=config.connect_timeout_s,
            banner_timeout=config.connect_timeout_s,
            auth_timeout=config.connect_timeout_s,
        )

    def _load_host_keys(self, client: paramiko.SSHClient, usual: str) -> None:
        """Load the keys of known hosts, and set the policy for others."""
        config = self._config
        known_hosts = Path(config.known_hosts or usual).expanduser()
        files = [known_hosts] if config.known_hosts else [known_hosts, Path("/etc/ssh/ssh_known_hosts")]
        for file in filter(Path.is_file, files):
            client.load_system_host_keys(str(file))
        accept = config.host_keys == "accept-new"
        client.set_missing_host_key_policy(AcceptNew(known_hosts) if accept else paramiko.RejectPolicy())

    def _read_config(self) -> dict[str, Any]:
        path = Path(self._config.ssh_config or "~/.ssh/config").expanduser()
        if not path.is_file():
            return {}
        settings: dict[str, Any] = dict(paramiko.SSHConfig.from_path(str(path)).lookup(self._host.host))
        if "proxyjump" in settings:
            raise BackendUnavailable(f"{path}: paramiko knows no ProxyJump; install the OpenSSH client")
        return settings

    def _socket(self, address: str, port: int, proxy: str | None) -> socket.socket | paramiko.ProxyCommand:
        if proxy:
            return paramiko.ProxyCommand(f"{shlex.join(unset_others(self._config.helper_environment()))} {proxy}")
        connection = socket.create_connection((address, port), timeout=self._config.connect_timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # without it each answer takes 40 ms
        return connection


def send_all(channel: paramiko.Channel, data: bytes) -> None:
    """Send all bytes."""
    for start in range(0, len(data), SLICE_BYTES):
        channel.sendall(data[start : start + SLICE_BYTES])


def error_text(error: Exception) -> str:
    """Return the text for an exception of paramiko."""
    return f"{type(error).__name__}: {error}"
