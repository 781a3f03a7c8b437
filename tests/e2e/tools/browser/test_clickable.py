"""References of elements that can be clicked and have no role."""

from __future__ import annotations

import pytest

from tests.e2e.tools.browser.conftest import Surfer
from tests.e2e.tools.browser.site import CLICKED

pytestmark = pytest.mark.anyio


async def test_snapshot_has_reference_of_each_clickable_element(surf: Surfer) -> None:
    await surf.goto("/clickable")
    shown = surf.snapshot
    missing = [text for text in CLICKED if not any(text in line and "[ref=" in line for line in shown.splitlines())]
    assert missing == []
    assert not any("plain" in line and "[ref=" in line for line in shown.splitlines())
    for text in CLICKED:
        await surf("click", ref=surf.ref(text))
        assert await surf.value("document.title") == text
        await surf.look()
    await surf("click", ref=surf.ref("img"))
    assert await surf.value("document.title") == "picture"


async def test_page_notices_no_marks(surf: Surfer) -> None:
    await surf.goto("/clickable")
    await surf.value(
        "new MutationObserver(() => { document.title = 'changed'; })"
        ".observe(document, {subtree: true, attributes: true, childList: true}); 1"
    )
    await surf.look()
    assert await surf.value("document.title") == "Clickable"
    assert "native code" in str(await surf.value("String(window.getComputedStyle)"))
