"""A harness of the standard library, for slots: it asks the model, runs the commands of its answer, and asks again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "sh",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]


def ask(messages: list[dict[str, Any]], timeout_s: float = 60, **more: object) -> dict[str, Any]:
    """Return the model's message."""
    body = {"model": "policy", "messages": messages, "tools": TOOLS, **more}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message


def work(task: str) -> str:
    """Let the model work on a task, and return its answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    while True:
        message = ask(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            (command,) = json.loads(call["function"]["arguments"]).values()
            done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
            output = done.stdout + done.stderr
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


if __name__ == "__main__":
    print(work(sys.argv[1]))
