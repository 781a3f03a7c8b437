"""Rules for the browser of a slot. They belong to the pool; nothing in the slot can change them."""

from __future__ import annotations

import ipaddress
import re
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from hermes_exec.config.model import ConfigModel

DialogPolicy = Literal["must_respond", "auto_dismiss", "auto_accept"]
_WITHOUT_HOST = frozenset({"about", "data", "blob", "file", "javascript"})
_METADATA_NAMES = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data")


def _address_patterns(*prefixes: str) -> tuple[str, ...]:
    """Return patterns of IPv4 addresses with these first numbers. They match no name that begins so: an address has up
    to three characters after its last dot and ends with a digit, while a name has letters there.
    """
    patterns = (".".join([*prefix.split("."), "*", "*"][:3]) for prefix in prefixes)
    return tuple(f"{pattern}.??{digit}" for pattern in patterns for digit in range(10))


_LOOPBACK_PATTERNS = ("localhost", "*.localhost", *_address_patterns("127", "0"), "::", "::1")
_PRIVATE_PATTERNS = (
    *_address_patterns("10", "192.168", "169.254", *(f"172.{second}" for second in range(16, 32))),
    *_address_patterns(*(f"100.{second}" for second in range(64, 128))),
    *_address_patterns("192.0.0", "192.0.2", "192.88.99", "198.18", "198.19", "198.51.100", "203.0.113"),
    *_address_patterns(*map(str, range(224, 256))),
    *("::*:*", "64:ff9b:1:*", "100:*:*", "5f00:*:*", "f*:*:*"),
    *("2001::*", "2001:??:*", "2001:1??:*", "2001:db8:*", "2002:*:*", "3fff::*", "3fff:???:*"),
)
"""Patterns of Chromium's resolver, in which `?` stands for no or one character. Chromium compares them with the host
and with `host:port`: a pattern with one colon or a digit at its end could match a name with its port.
"""
_PATTERN = re.compile(r"[A-Za-z0-9.*?:_-]+")
_NOWHERE = "~NOTFOUND"


class BrowserConfig(ConfigModel):
    """Rules for the browser tools. Hosts are names or patterns (`*.example.org`) without a port."""

    schemes: tuple[str, ...] = ("http", "https", "about", "data", "blob", "file")
    allow_hosts: tuple[str, ...] = ()
    """If set, no other host is reached. A host with its full name here may have a private address."""
    refuse_hosts: tuple[str, ...] = ()
    allow_private: bool = False
    """Allow private and link-local addresses, where clouds serve their metadata, and all others that are not globally
    routable unicast. A slot without network reaches only itself in any case. A loopback that others share is private.
    """
    download_mb: Annotated[int, Field(ge=1)] = 100
    """Largest file that may be downloaded, in MiB."""
    dialogs: DialogPolicy = "must_respond"
    inactivity_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """A browser that no tool has used for this time is closed; the next call starts another."""

    @field_validator("allow_hosts", "refuse_hosts")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is no host, nor a pattern of hosts such as '*.example.org'")
        return tuple(pattern.lower() for pattern in value)

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.allow_hosts and self.refuse_hosts:
            raise ValueError("give allow_hosts or refuse_hosts, not both")
        return self

    def resolver_rules(self, *, network: bool, own_loopback: bool) -> str:
        """Return the rules for Chromium's `--host-resolver-rules`, which hold for all requests of a page."""
        if self.allow_hosts and "*" not in self.allow_hosts:
            return ", ".join([f"MAP * {_NOWHERE}", *(f"EXCLUDE {pattern}" for pattern in self.allow_hosts)])
        refused = list(self.refuse_hosts)
        if network and not self.allow_private:
            refused += [*_METADATA_NAMES, *_PRIVATE_PATTERNS, *(() if own_loopback else _LOOPBACK_PATTERNS)]
        return ", ".join(f"MAP {pattern} {_NOWHERE}" for pattern in refused)

    def refusal(self, url: str, *, network: bool, own_loopback: bool) -> str | None:
        """Return why a URL may not be opened, as half a sentence, or None if it may.

        Args:
            url: The URL.
            network: Whether the slot has a network.
            own_loopback: Whether nobody else reaches the slot's loopback.
        """
        parts = urlsplit(url)
        scheme = parts.scheme.lower()
        if scheme not in self.schemes:
            return f"the scheme {scheme or 'of no URL'!r} is not allowed (allowed: {', '.join(self.schemes)})"
        if scheme in _WITHOUT_HOST:
            return None
        host = (parts.hostname or "").rstrip(".").lower()
        if not host:
            return "it names no host"
        if host in self.allow_hosts:
            return None
        if self.allow_hosts and not any(fnmatchcase(host, pattern) for pattern in self.allow_hosts):
            return f"the host {host} is not among those allowed ({', '.join(self.allow_hosts)})"
        if any(fnmatchcase(host, pattern) for pattern in self.refuse_hosts):
            return f"the host {host} is refused"
        return self._private(host, f"{host} is", network=network, own_loopback=own_loopback)

    def address_refusal(self, host: str, address: str, *, network: bool, own_loopback: bool) -> str | None:
        """Return why the address of a host may not be shown, as half a sentence, or None if it may."""
        if host in self.allow_hosts:
            return None
        return self._private(address, f"{host} is at {address},", network=network, own_loopback=own_loopback)

    def _private(self, host: str, subject: str, *, network: bool, own_loopback: bool) -> str | None:
        why = private_range(host) if network and not self.allow_private else None
        if why is None or (why == "loopback" and own_loopback):
            return None
        return f"{subject} a {why} address, which the pool does not allow (browser={{'allow_private': True}})"


_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Networks whose addresses end with an IPv4 address (RFC 4291, RFC 6052)."""
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")))
"""Networks that IANA has reserved for protocols and examples, and that Python's `is_global` may not know."""


def private_range(host: str) -> str | None:
    """Return the range of a private address: loopback, private, link-local or metadata. None for a public one.

    Every address that is not globally routable unicast counts as private.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    if host in _METADATA_NAMES:
        return "metadata"
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if address in _MAPPED:
        address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.is_loopback or address.is_unspecified:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address in _NAT64:  # a gateway sends the packets on: its loopback is not the slot's
        address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None if _is_public(address) else "private"


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    is_unicast = address in _GLOBAL_UNICAST if address.version == 6 else not address.is_multicast
    return is_unicast and address.is_global and not any(address in network for network in _SPECIAL)
