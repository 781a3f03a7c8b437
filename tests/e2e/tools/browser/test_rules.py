"""The rules of a pool for its browsers, which neither a model nor a page changes."""

from __future__ import annotations

import re
from collections.abc import Callable

import anyio
import pytest

from hermes_exec import SandboxPool
from hermes_exec.tools import Toolbox, ToolResult
from hermes_exec.tools.browser import name_check
from tests.conftest import require_engine
from tests.e2e.tools.browser.conftest import HOME, PORT, TOOLSETS, Surfer, browser_pool, serve_site


async def test_rules_of_the_pool(request: pytest.FixtureRequest, docker_image: Callable[[str], str]) -> None:
    rules = {"allow_hosts": ["localhost"], "download_mb": 1, "dialogs": "auto_accept", "schemes": ["http", "about"]}
    pool = browser_pool(request, docker_image, browser=rules)
    async with pool, pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
        await serve_site(slot)
        surf = Surfer(toolbox)
        for url, why in (
            (f"http://127.0.0.1:{PORT}/form", "not among those allowed"),
            (f"{HOME}/redirect?to=http://127.0.0.1:{PORT}/form", "not among those allowed"),
            ("file:///etc/passwd", "the scheme 'file' is not allowed"),
        ):
            refused = await surf.fails("navigate", url=url)
            assert refused.error_kind == "blocked_by_policy", refused.content
            assert why in str(refused.data["blocked_by_policy"])
        await surf.goto("/files")
        fetched = f"fetch('http://127.0.0.1:{PORT}/').then(() => 'reached', e => 'refused')"
        assert await surf.value(fetched) == "refused"
        clicked = await surf("click", ref=surf.ref("Endless"))
        for _ in range(300):
            if "in progress" not in str(clicked["downloads"]):
                break
            await anyio.sleep(0.2)
            clicked = await surf("snapshot")
        assert clicked["downloads"][0]["state"] == "refused: larger than 1 MiB"
        await anyio.sleep(1)
        await surf("snapshot")
        with anyio.fail_after(60):
            while (await slot.run("ls $HOME/Downloads")).stdout:
                await surf("snapshot")
        await surf.goto("/dialogs")
        told = await surf("click", ref=surf.ref('button "Confirm"'))
        assert told["recent_dialogs"][0]["answer"] == "accepted"
        assert await surf.value("document.title") == "said true"


PRIVATE = """
name=$(hostname)
echo "<title>Frame</title><iframe src=http://$name:8200/secret.txt></iframe>" > frame.html
echo "<title>Links</title><a target=_blank href=http://$name:8200/secret.txt>Tab</a>
<a href=http://$name:8200/secret.bin>File</a><div onclick=1>Needs a mark</div>" > links.html
echo "<title>Asks</title>" > asks.html
echo secret | tee secret.txt > secret.bin
exec python3 -u -m http.server --bind 0.0.0.0 8200 2>requests
"""


async def test_names_that_begin_as_private_addresses_are_opened(docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    names = [f"files.test:{PORT}", f"224.test:{PORT}", f"10.a.b.test:{PORT}"]
    async with (
        SandboxPool("docker", image=docker_image("browser")) as pool,
        pool.slot() as slot,
        Toolbox(slot, TOOLSETS) as toolbox,
    ):
        hosts = " ".join(name.partition(":")[0] for name in names)
        await slot.run(f"echo 127.0.0.1 {hosts} >> /etc/hosts", user="root", check=True)
        await serve_site(slot)
        surf = Surfer(toolbox)
        for name in names:
            assert (await surf("navigate", url=f"http://{name}/form"))["url"] == f"http://{name}/form"
        asked = f"fetch('http://224.0.0.1:{PORT}/', {{mode: 'no-cors'}}).then(() => 'reached', e => 'refused')"
        assert await surf.value(asked) == "refused"


@pytest.mark.parametrize("how", ["refused", "refused late", "allowed"])
async def test_names_that_lead_to_private_addresses(
    docker_image: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Late: where the slot cannot look names up."""
    require_engine("docker")
    allowed, late = how == "allowed", how == "refused late"
    if late:
        monkeypatch.setattr(name_check, "LOOK_UP", ("/no/such/getent",))
    pool = SandboxPool("docker", image=docker_image("browser"), browser={"allow_private": allowed})
    async with pool, pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
        name = (await slot.run("hostname")).stdout.strip()
        server = await slot.spawn(PRIVATE)
        await server.stdout.receive()  # it serves
        surf = Surfer(toolbox)

        async def meets(result: ToolResult) -> None:
            if allowed:
                assert result.ok, result.content
                assert "blocked_by_policy" not in result.data
                return
            assert re.search(f"{name} is at [0-9.]+, a private address", str(result.data["blocked_by_policy"]))
            assert result.error_kind == "blocked_by_policy" or not late, result.content
            assert "secret\\n" not in (await surf.call("snapshot")).content

        await meets(await surf.call("navigate", url=f"http://{name}:8200/secret.txt"))
        for link in ("Tab", "File"):
            await surf("navigate", url="http://localhost:8200/links.html")
            await meets(await surf.call("click", ref=surf.ref(link)))
        framed = await surf.call("navigate", url="http://localhost:8200/frame.html")
        assert framed.ok != late
        assert ("secret" in (await surf.call("snapshot")).content) == allowed
        assert (await slot.run("ls ~/Downloads")).stdout == ("secret.bin\n" if allowed else "")
        await surf("navigate", url="http://localhost:8200/asks.html")
        if late:
            return
        asked = (
            f"fetch('http://{name}:8200/secret.txt?fetched', {{mode: 'no-cors'}}).then(() => 'reached', e => 'refused')"
        )
        assert await surf.value(asked) == ("reached" if allowed else "refused")
        requests = await slot.files.read_text("requests")
        assert "GET /links.html" in requests
        assert ("GET /secret" in requests) == allowed, requests
        await server.kill()


async def test_rules_hold_for_the_protocol_too(
    request: pytest.FixtureRequest, docker_image: Callable[[str], str]
) -> None:
    pool = browser_pool(request, docker_image, browser={"schemes": ["http", "about"], "refuse_hosts": ["127.0.0.1"]})
    async with pool, pool.slot() as slot, Toolbox(slot, TOOLSETS) as toolbox:
        await serve_site(slot)
        surf = Surfer(toolbox)
        await surf.goto("/form")
        refused = await surf.call("cdp", method="Page.navigate", params={"url": "file:///etc/passwd"})
        if refused.ok:  # the next call at the latest
            refused = await surf.fails("snapshot")
        assert refused.error_kind == "blocked_by_policy", refused.content
        await surf.goto("/form")
