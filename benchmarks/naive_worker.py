"""The simplest worker that runs commands elsewhere: lines of JSON on stdin and stdout, and threads.

It also runs in a container, so it uses the standard library only.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

THREADS = 64


def execute(request: dict[str, Any]) -> dict[str, Any]:
    """Execute a request."""
    if "write" in request:
        with open(request["write"], "wb") as file:
            file.write(base64.b64decode(request["data"]))
        return {}
    if "read" in request:
        with open(request["read"], "rb") as file:
            return {"data": base64.b64encode(file.read()).decode()}
    completed = subprocess.run(request["run"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return {
        "exit_code": completed.returncode,
        "data": base64.b64encode(completed.stdout).decode(),
        "error": base64.b64encode(completed.stderr).decode(),
    }


def main() -> None:
    """Serve until stdin ends."""
    lock = threading.Lock()

    def serve(line: bytes) -> None:
        request = json.loads(line)
        data = json.dumps({"id": request["id"], **execute(request)}).encode() + b"\n"
        with lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    with ThreadPoolExecutor(THREADS) as threads:
        for line in sys.stdin.buffer:
            threads.submit(serve, line)


if __name__ == "__main__":
    main()
