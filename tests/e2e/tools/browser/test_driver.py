"""Playwright's driver, the program on the host that the browsers of several slots share."""

from __future__ import annotations

import anyio
import pytest

from hermes_exec.tools.browser.playwright_driver import PlaywrightDriver

pytestmark = pytest.mark.anyio
WANTED = {"PATH": None, "HTTPS_PROXY": "http://127.0.0.1:9", "DEBUG": "none", "NODE_OPTIONS": "--no-warnings"}
KEYS = ("OPENAI_API_KEY", "WANDB_API_KEY", "NODE_AUTH_TOKEN")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_driver_does_not_get_the_keys_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright")
    for name, value in {**WANTED, **{key: f"value-of-{key}" for key in KEYS}}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    driver = PlaywrightDriver.for_this_loop(alone=True)
    await driver.use()
    try:
        assert driver._process is not None
        got = (await anyio.Path(f"/proc/{driver._process.pid}/environ").read_text()).split("\0")
    finally:
        driver.stop_using()
        await driver._stop()
    assert {name for name in WANTED if any(each.startswith(f"{name}=") for each in got)} == set(WANTED)
    assert "PW_LANG_NAME=python" in got
    assert "value-of" not in " ".join(got)
