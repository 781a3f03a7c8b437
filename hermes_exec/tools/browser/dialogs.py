"""The dialogs of a browser's pages: open ones that wait for an answer, and answered ones."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from hermes_exec.tools.browser.page_log import MAX_TEXT_CHARS
from hermes_exec.tools.browser.playwright_driver import ignore_errors

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog

    from hermes_exec.config.browser import BrowserConfig
    from hermes_exec.tools.browser.background_tasks import BackgroundTasks

MAX_PAST_DIALOGS = 20


@dataclass
class OpenDialog:
    """A dialog of a page (alert, confirm, prompt, beforeunload)."""

    dialog: Dialog
    id: str = field(default_factory=lambda: "dialog_" + secrets.token_hex(4))
    opened_at: float = field(default_factory=time.time)
    answer: str | None = None

    def describe(self) -> dict[str, object]:
        """Return the fields of the dialog for the model."""
        fields: dict[str, object] = {
            "id": self.id,
            "type": self.dialog.type,
            "message": self.dialog.message[:MAX_TEXT_CHARS],
        }
        if self.dialog.default_value:
            fields["default_prompt"] = self.dialog.default_value[:MAX_TEXT_CHARS]
        fields["opened_at"] = round(self.opened_at, 3)
        if self.answer is not None:
            fields["answer"] = self.answer
        return fields


class Dialogs:
    """All dialogs of one browser. `on_open` is called when one opens; `background` runs automatic answers."""

    def __init__(self, rules: BrowserConfig, background: BackgroundTasks, on_open: Callable[[], object]) -> None:
        self.open: list[OpenDialog] = []
        """The open dialogs. Each blocks its page until it is answered."""
        self.past: deque[OpenDialog] = deque(maxlen=MAX_PAST_DIALOGS)
        self._rules, self._background, self._on_open = rules, background, on_open
        self.dialog_opened = asyncio.Event()
        """Set when a dialog opens."""

    def watch(self, context: BrowserContext) -> None:
        """Record the dialogs of a context from now on."""
        context.on("dialog", self._on_dialog)

    def _on_dialog(self, dialog: Dialog) -> None:
        opened = OpenDialog(dialog)
        self.open.append(opened)
        self.dialog_opened.set()
        self._on_open()
        if self._rules.dialogs != "must_respond":
            self._background.start(partial(self.answer, opened, accept=self._rules.dialogs == "auto_accept"))

    async def answer(self, opened: OpenDialog, *, accept: bool, text: str | None = None) -> None:
        """Answer a dialog; `text` is the input for a prompt."""
        if opened in self.open:
            self.open.remove(opened)
            opened.answer = "accepted" if accept else "dismissed"
            self.past.append(opened)
        work = (lambda: opened.dialog.accept(text)) if accept else opened.dialog.dismiss
        await ignore_errors(work)
