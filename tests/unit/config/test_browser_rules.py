"""Which URLs and addresses the browser of a slot may open."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from hermes_exec import ConfigError, SandboxPool
from hermes_exec.config.browser import BrowserConfig

PRIVATE = (
    "http://169.254.169.254/latest/meta-data",
    "http://metadata.google.internal/",
    "http://10.1.2.3/",
    "http://172.16.0.1:8080/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://[fe80::1]/",
    "http://[fd00::1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://localhost:8000/",
    "http://127.0.0.1/",
    "http://[::1]/",
    "http://0.0.0.0/",
    "http://192.0.0.8/",
    "http://192.0.2.1/",
    "http://192.88.99.1/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://239.255.255.250/",
    "http://255.255.255.255/",
    "http://[ff02::1]/",
    "http://[5f00::1]/",
    "http://[fec0::1]/",
    "http://[100::1]/",
    "http://[::7f00:1]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/",
    "http://[2001:10::1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
)
TRANSLATED = ("http://[64:ff9b::a9fe:a9fe]/", "http://[64:ff9b::7f00:1]/")
"""Addresses of a gateway that sends the packets to a private address."""
PUBLIC = (
    "http://93.184.216.34/",
    "http://223.255.255.1/",
    "http://192.0.1.1/",
    "http://198.20.0.1/",
    "http://[::ffff:8.8.8.8]/",
    "http://[64:ff9b::808:808]/",
    "http://[2606:4700:4700::1111]/",
    "http://[2a00:1450:4001::1]/",
    "http://[2001:4860:4860::8888]/",
    "http://[2001:200::1]/",
    "http://[2620:4f:8000::1]/",
)
NAMES = (
    *("f.org", "files.example.org", "5f00", "100.example.com", "10.a.b.ai", "172.16.a.com", "192.168.0.a.org"),
    *("0.example.com", "127.a.b.c.org", "224.example.com", "224.0.0.1.example.org", "255.0.0.xn--p1ai"),
)


def refusal(rules: BrowserConfig, url: str, *, network: bool = True, own_loopback: bool = False) -> str | None:
    return rules.refusal(url, network=network, own_loopback=own_loopback)


@pytest.mark.parametrize("url", [*PRIVATE, *TRANSLATED])
def test_private_addresses_are_refused_where_there_is_a_network(url: str) -> None:
    for rules in (BrowserConfig(), BrowserConfig(allow_hosts=("*",)), BrowserConfig(refuse_hosts=("example.org",))):
        assert "which the pool does not allow" in str(refusal(rules, url))
        assert refusal(rules, url, network=False) is None
    assert refusal(BrowserConfig(allow_private=True), url) is None


@pytest.mark.parametrize("url", PUBLIC)
def test_refusal_of_public_address_is_none(url: str) -> None:
    assert refusal(BrowserConfig(), url) is None


@pytest.mark.parametrize("url", PRIVATE)
def test_resolver_rules_match_private_address(url: str) -> None:
    """A frame or a script of a page is refused by these rules alone."""
    host = (urlsplit(url).hostname or "").replace("::ffff:10.0.0.1", "::ffff:a00:1")  # as the browser writes it
    assert is_mapped(host)


@pytest.mark.parametrize("url", [url for url in PUBLIC if "ffff" not in url])
def test_resolver_rules_leave_out_public_address(url: str) -> None:
    assert not is_mapped(urlsplit(url).hostname or "")


@pytest.mark.parametrize("name", NAMES)
def test_resolver_rules_leave_out_name_that_begins_as_private_address(name: str) -> None:
    assert not is_mapped(name)


def is_mapped(host: str) -> bool:
    rules = BrowserConfig().resolver_rules(network=True, own_loopback=False).split(", ")
    patterns = (rule.removeprefix("MAP ").removesuffix(" ~NOTFOUND") for rule in rules)
    # In a pattern of Chromium, `?` stands for no or one character. A rule holds if it matches one of these texts.
    texts = (host, *(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for port in (5, 80, 8080, 65535)))
    expressions = [re.compile(re.escape(p).replace(r"\*", ".*").replace(r"\?", ".?")) for p in patterns]
    return any(expression.fullmatch(text) for expression in expressions for text in texts)


def test_translated_loopback_is_not_the_loopback_of_the_slot() -> None:
    for host in ("64:ff9b::7f00:1", "2002:7f00:1::"):
        assert refusal(BrowserConfig(), f"http://[{host}]/", own_loopback=True) is not None
    assert refusal(BrowserConfig(), "http://[::ffff:127.0.0.1]/", own_loopback=True) is None


def test_the_loopback_of_a_container_is_its_own() -> None:
    assert refusal(BrowserConfig(), "http://localhost:8000/", own_loopback=True) is None
    assert refusal(BrowserConfig(), "http://10.0.0.1/", own_loopback=True) is not None


def test_a_host_that_is_named_in_full_may_be_private() -> None:
    rules = BrowserConfig(allow_hosts=("10.0.0.5", "wiki.example.org", "*.example.com"))
    assert refusal(rules, "http://10.0.0.5/") is None
    assert "not among those allowed" in str(refusal(rules, "http://10.0.0.6/"))
    for host, allowed in (("wiki.example.org", True), ("a.example.com", False)):
        assert refusal(rules, f"http://{host}/") is None
        why = rules.address_refusal(host, "169.254.169.254", network=True, own_loopback=False)
        assert (why is None) is allowed
        assert rules.address_refusal(host, "93.184.216.34", network=True, own_loopback=False) is None


def test_the_resolver_knows_the_rules() -> None:
    def given(rules: BrowserConfig, *, network: bool = True) -> list[str]:
        return rules.resolver_rules(network=network, own_loopback=False).split(", ")

    everywhere = given(BrowserConfig())
    assert {"MAP 169.254.*.??4 ~NOTFOUND", "MAP ::1 ~NOTFOUND", "MAP metadata.google.internal ~NOTFOUND"} <= set(
        everywhere
    )
    assert given(BrowserConfig(allow_hosts=("*",))) == everywhere
    assert given(BrowserConfig(), network=False) == [""]
    assert given(BrowserConfig(allow_hosts=("a.org", "*.b.org"))) == [
        "MAP * ~NOTFOUND",
        "EXCLUDE a.org",
        "EXCLUDE *.b.org",
    ]
    assert "MAP c.org ~NOTFOUND" in given(BrowserConfig(refuse_hosts=("c.org",)))


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"allow_hosts": ["http://a.org"]}, "is no host"),
        ({"allow_hosts": ["a.org"], "refuse_hosts": ["b.org"]}, "not both"),
        ({"download_mb": 0}, "download_mb"),
        ({"dialogs": "auto"}, "dialogs"),
        ({"allow_host": ["a.org"]}, "allow_host"),
    ],
)
def test_wrong_rules_are_told(rules: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SandboxPool("local", browser=rules)
