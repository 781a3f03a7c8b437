"""HTTP settings of the environment: proxies, the hosts that need none, trusted certificates, and headers."""

from __future__ import annotations

import importlib.util
import os
import re
import ssl
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

import httpcore2

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PROXY_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


class UnusableEnvironment(Exception):
    """Raised if the environment names a proxy or a certificate that cannot be used."""


class _Direct(NamedTuple):
    """An entry of NO_PROXY. `name` is a host, which stands for its subdomains too, or begins with a dot and stands for
    subdomains alone. "" and None: any.
    """

    scheme: str
    name: str
    port: int | None
    network: IPv4Network | IPv6Network | None

    def matches(self, scheme: str, host: str, port: int) -> bool:
        """Return whether a server is one of those that the entry names."""
        if self.scheme not in ("", scheme) or self.port not in (None, port):
            return False
        if self.network is not None:
            return _is_in(host, self.network)
        domain = f".{self.name.removeprefix('.')}"
        return host == self.name or (self.name != "localhost" and host.endswith(domain))


class Proxies:
    """The proxies of HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, except for the servers of NO_PROXY and this host."""

    def __init__(self) -> None:
        named = getproxies()
        self._urls = {scheme: named.get(scheme) or named.get("all") for scheme in ("http", "https")}
        entries = [entry.strip() for entry in named.get("no", "").split(",")]
        if "*" in entries:
            self._urls = {}
        self._direct = [direct for entry in entries if (direct := _read_entry(entry)) is not None]

    def find(self, scheme: str, host: str, port: int) -> httpcore2.Proxy | None:
        """Return the proxy for a server, if it needs one.

        Raises:
            UnusableEnvironment: If its URL is invalid.
        """
        url = self._urls.get(scheme)
        if not url or host in _LOOPBACK or any(each.matches(scheme, host, port) for each in self._direct):
            return None
        return _read_proxy(url if "://" in url else f"http://{url}")


def trusted_certificates() -> ssl.SSLContext:
    """Return a context that trusts the certificates of SSL_CERT_FILE or SSL_CERT_DIR, or else of the system.

    Raises:
        UnusableEnvironment: If they cannot be loaded.
    """
    try:
        return httpcore2.default_ssl_context()
    except OSError as error:
        raise UnusableEnvironment(
            f"the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be loaded: {error}"
        ) from error


def environment_headers() -> dict[str, str]:
    """Return the headers that the official client of OpenAI reads from the environment.

    They are `OPENAI_ORG_ID`, `OPENAI_PROJECT_ID`, and the lines `NAME: VALUE` of `OPENAI_CUSTOM_HEADERS`.
    """
    names = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
    lines = (line.partition(":") for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines())
    custom = {name.strip(): value.strip() for name, colon, value in lines if colon}
    return {name: os.environ[variable] for name, variable in names.items() if variable in os.environ} | custom


def _read_proxy(url: str) -> httpcore2.Proxy:
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port or _PROXY_PORTS[parts.scheme]
        if not host:
            raise ValueError("no host")
    except (ValueError, KeyError):
        shown = re.sub(r"//.*@", "//", url)
        raise UnusableEnvironment(f"{shown!r} is not the URL of a proxy, such as http://proxy:3128") from None
    if parts.scheme.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise UnusableEnvironment("a SOCKS proxy needs the package socksio: pip install 'httpcore2[socks]'")
    login = None
    if parts.username or parts.password:
        login = unquote(parts.username or "").encode(), unquote(parts.password or "").encode()
    return httpcore2.Proxy(httpcore2.URL(scheme=parts.scheme, host=host, port=port, target="/"), auth=login)


def _read_entry(entry: str) -> _Direct | None:
    """Return an entry of NO_PROXY. None: it is not readable, and ignored as other programs do."""
    scheme, _, rest = entry.lower().rpartition("://")
    scheme = "" if scheme == "all" else scheme
    if network := _read_network(rest.strip("[]")):
        return _Direct(scheme, "", None, network)
    try:
        parts = urlsplit(f"//{rest}")
        name, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if parts.path or not name.strip("*."):
        return None
    return _Direct(scheme, name.removeprefix("*"), port, _read_network(name))


def _read_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _is_in(host: str, network: IPv4Network | IPv6Network) -> bool:
    try:
        address: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        return False
    return address in network
