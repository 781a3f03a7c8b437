"""A harness of the standard library: it runs the commands of a model until an answer has none.

It runs inside a slot, as the recipe `script`: Python 3.8 or newer and `sh` are all that it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

SYSTEM = "You have a shell. Use the tool `bash` until the task is done. Then answer without a call."
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in a new shell and return its output and exit code.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
COMMAND_S = 180
OUTPUT_CHARACTERS = 10_000


def ask(messages: list[dict]) -> dict:  # type: ignore[type-arg]
    """Return the model's answer to a conversation."""
    body = json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        message: dict = json.load(answer)["choices"][0]["message"]  # type: ignore[type-arg]
        return message


def run(arguments: str) -> str:
    """Run the command of a call, and return what the model reads."""
    try:
        command = json.loads(arguments)["command"]
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"{(error.stdout or b'').decode(errors='replace')[-OUTPUT_CHARACTERS:]}\n[stopped after {COMMAND_S} s]"
    except (ValueError, TypeError, KeyError) as error:
        return f"wrong arguments: {error!r}"
    return f"{done.stdout.decode(errors='replace')[-OUTPUT_CHARACTERS:]}\n[exit code {done.returncode}]"


def work(task: str) -> None:
    """Let the model work on a task, and print its last answer."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    while True:
        message = ask(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            sys.stdout.write(str(message["content"]) + "\n")
            return
        for call in message["tool_calls"]:
            content = run(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


if __name__ == "__main__":
    try:
        work(sys.argv[-1])
    except urllib.error.HTTPError as error:
        sys.exit(f"{error}: {error.read().decode(errors='replace')}")
