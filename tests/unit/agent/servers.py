"""Servers on loopback below HTTP: one that writes given bytes, a proxy, and certificates of an own authority."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass
class Authority:
    """A server's context, and the file with the certificate that clients have to trust."""

    context: ssl.SSLContext
    path: Path


def make_authority(directory: Path, *names: str) -> Authority:
    """Return a certificate for these host names or addresses, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server, authority = directory / f"{names[0]}.pem", directory / f"{names[0]}-authority.pem"
    server.write_bytes(secret + certificate)
    authority.write_bytes(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server)
    return Authority(context, authority)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@contextmanager
def serving(serve: Callable[[socket.socket], None], host: str = "127.0.0.1") -> Iterator[int]:
    """Serve each connection in a thread, and yield the port."""
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def run(connected: socket.socket) -> None:
        with connected, suppress(OSError):
            serve(connected)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connected, _ = listener.accept()
                open_sockets.append(connected)
                thread = threading.Thread(target=run, args=(connected,))
                threads.append(thread)
                thread.start()

    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        listener.listen(128)
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for each in open_sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def read_head(connected: socket.socket) -> bytes:
    """Return the head of a request; b"" at the end of the connection. Its body stays unread."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connected.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def read_request(connected: socket.socket) -> bytes:
    """Return a request with its body; b"" at the end of the connection."""
    head = read_head(connected)
    length = next((int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:")), 0)
    body = b""
    while len(body) < length:
        body += connected.recv(length - len(body))
    return head + body


Script = Sequence[bytes | Callable[[], object]]
"""The pieces of an answer, and calls between them."""


@dataclass
class RawServer:
    """A server that answers each request with the next of its answers. `requests` are what it read."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"


@contextmanager
def raw_server(*answers: bytes | Script, closes: bool = False) -> Iterator[RawServer]:
    """Serve these answers as they are, in pieces or with calls between them. `closes`: hang up after each."""
    state, left = RawServer(), list(answers)

    def serve(connected: socket.socket) -> None:
        state.connections += 1
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while request := read_request(connected):
            state.requests.append(request)
            answer = left.pop(0)
            for piece in [answer] if isinstance(answer, bytes) else answer:
                if isinstance(piece, bytes):
                    connected.sendall(piece)
                else:
                    piece()
            if closes:
                return

    with serving(serve) as port:
        state.port = port
        yield state


@dataclass
class Proxy:
    """A proxy that connects each host name to `127.0.0.1`. `heads` are the heads of the requests that it read."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)


@contextmanager
def http_proxy(*, tls: ssl.SSLContext | None = None, refuses: bytes = b"") -> Iterator[Proxy]:
    """Serve CONNECT and requests with whole URLs. `refuses` is its answer to every request."""
    state, stopped = Proxy(), threading.Event()

    def serve(connected: socket.socket) -> None:
        if tls is None:
            serve_plain(connected)
        else:
            with tls.wrap_socket(connected, server_side=True) as encrypted:
                serve_plain(encrypted)

    def serve_plain(connected: socket.socket) -> None:
        head = read_head(connected)
        state.heads.append(head)
        if refuses:
            connected.sendall(refuses)
            return
        method, target, _ = head.decode().split(" ", 2)
        authority = target if method == "CONNECT" else target.split("/")[2]
        with socket.create_connection(("127.0.0.1", int(authority.rpartition(":")[2]))) as server:
            if method == "CONNECT":
                connected.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                server.sendall(head.replace(f"http://{authority}".encode(), b"", 1))
            _relay(connected, server, stopped)

    with serving(serve) as port:
        state.port = port
        try:
            yield state
        finally:
            stopped.set()


def _relay(one: socket.socket, other: socket.socket, stopped: threading.Event) -> None:
    """Copy bytes both ways until either side ends."""
    while not stopped.is_set():
        pending = [one] if isinstance(one, ssl.SSLSocket) and one.pending() else []
        for source in pending or select.select([one, other], [], [], 0.1)[0]:
            if not (content := source.recv(65536)):
                return
            (other if source is one else one).sendall(content)


def chunked(*pieces: bytes) -> bytes:
    """Return a body in chunks, with its end."""
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
