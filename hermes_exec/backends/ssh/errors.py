"""Messages of SSH clients about hosts that cannot be used, and their translation."""

from __future__ import annotations

from hermes_exec.backends.engine_errors import ErrorRow, temporarily_unavailable, translate
from hermes_exec.backends.ssh.config import SSHHost
from hermes_exec.errors import BackendUnavailable, ExecError

CLOSED = "the connection was closed"
ROWS = (
    ErrorRow(
        BackendUnavailable,
        "ssh {name}: its host key has changed, or another host answers: if that is right, ssh-keygen -R '{entry}' "
        "forgets the old one (with -f FILE where known_hosts= names another file) ({reason})",
        "REMOTE HOST IDENTIFICATION HAS CHANGED|BadHostKey",
    ),
    ErrorRow(
        BackendUnavailable,
        "ssh {name}: its host key is not known: compare it, then {scan} >> ~/.ssh/known_hosts (or the file of "
        "known_hosts=), or host_keys='accept-new' ({reason})",
        r"No \S+ host key is known|Host key verification failed|not found in known_hosts",
    ),
    ErrorRow(
        BackendUnavailable,
        "ssh {name}: the key needs its passphrase: load it into ssh-agent, or give passphrase= ({reason})",
        "ncorrect passphrase|encrypted|Passw|nvalid key",
    ),
    ErrorRow(
        BackendUnavailable,
        "ssh {name}: it does not let us in: ssh-copy-id {name}, or give identity_file ({reason})",
        "Permission denied|uthentication",
    ),
    ErrorRow(
        BackendUnavailable,
        "ssh {name}: its name is not known ({reason})",
        "ould not resolve|Name or service not known|nodename nor servname",
    ),
    ErrorRow(
        BackendUnavailable,
        "ssh {name}: no SSH server listens there ({reason})",
        "onnection refused|Unable to connect",
    ),
    ErrorRow(
        temporarily_unavailable,
        "ssh {name}: it does not answer ({reason})",
        "imed out|timeout|No route to host|unreachable",
    ),
    ErrorRow(BackendUnavailable, "ssh {name}: the connection failed ({reason})"),
)


def unavailable_error(host: SSHHost, text: str) -> ExecError:
    """Return the error for a client's message, with the cause and the remedy."""
    reason = " ".join(line for line in text.splitlines() if line.strip() and not line.startswith("@"))[-500:]
    entry = host.host if host.port in {None, 22} else f"[{host.host}]:{host.port}"
    scan = f"ssh-keyscan {host.host}" if host.port is None else f"ssh-keyscan -p {host.port} {host.host}"
    return translate(ROWS, reason, text=text, name=host.name, entry=entry, scan=scan)
