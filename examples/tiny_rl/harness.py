"""A harness that runs inside a slot: it asks the model twice, and appends the answers to a file."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

TURNS = 2


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's message."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message


messages: list[dict[str, Any]] = [{"role": "user", "content": sys.argv[1]}]
for _ in range(TURNS):
    messages.append(ask(messages))
    if "--no-writes" not in sys.argv:
        with open("turns.txt", "ab") as file:
            file.write((messages[-1]["content"] or "").encode("utf-8", "replace"))
    messages.append({"role": "user", "content": "Go on."})
