"""A Python process that keeps its variables between pieces of code; execute_code runs it in the slot.

It connects to the toolbox's socket and receives a line of JSON for each piece of code: {"code": ..., "mark": ...}. The
output of the code goes to standard output and error, followed by `mark`. The answer is a line of JSON: {"ok": bool,
"images": [paths], "began_s": seconds after boot or null}. The program is compatible with Python 3.6.
"""

import ast
import json
import linecache
import os
import socket
import sys
import time
import traceback
import types
from typing import List, Optional


class Kernel:
    """The namespace of the code, and the figures that it drew."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self.figures = os.environ["HERMES_FIGURES"]
        self.images = self.pieces = 0

    def run(self, code: str) -> bool:
        """Run a piece of code and print the value of its last expression. Return False if it raised."""
        self.pieces += 1
        name = f"<code {self.pieces}>"
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            last = tree.body[-1] if tree.body else None
            if isinstance(last, ast.Expr):
                tree.body.pop()
            exec(compile(tree, name, "exec"), self.module.__dict__)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), name, "eval"), self.module.__dict__)
                if value is not None:
                    print(repr(value))
        except SystemExit as end:
            if end.code not in (None, 0):  # the same text as Python's own
                print(f"exit code {end.code}" if isinstance(end.code, int) else end.code, file=sys.stderr)
            return end.code in (None, 0)
        except BaseException:
            kind, error, trace = sys.exc_info()
            traceback.print_exception(kind, error, trace.tb_next if trace is not None else None)
            return False
        return True

    def save_figures(self) -> List[str]:
        """Save the figures of matplotlib as images, close them, and return the paths."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        saved = []  # type: List[str]
        if pyplot is None:
            return saved
        for number in pyplot.get_fignums():
            self.images += 1
            path = f"{self.figures}-{self.images}.png"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            pyplot.figure(number).savefig(path)
            pyplot.close(number)
            saved.append(path)
        return saved


def read_boot_clock() -> Optional[float]:
    """Return the time in seconds after boot, or None on a system without this clock."""
    try:
        return time.clock_gettime(7)  # CLOCK_BOOTTIME, which has no name before Python 3.7
    except (AttributeError, OSError):
        return None


def main() -> None:
    """Serve until the toolbox closes its end."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ["HERMES_TOOLS_SOCKET"])
    connection.sendall(os.environ["HERMES_TOOLS_TOKEN"].encode("ascii") + b"\nkernel\n")
    kernel, own_pid = Kernel(), os.getpid()
    with connection.makefile("rb") as lines:
        for line in lines:
            request = json.loads(line.decode("utf-8"))
            began_s = read_boot_clock()
            ok = kernel.run(request["code"])
            images = []  # type: List[str]
            try:
                images = kernel.save_figures()
            except BaseException:
                traceback.print_exc()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            if os.getpid() != own_pid:  # a child process that the code forked, at the end of the code
                os._exit(0 if ok else 1)
            for number in (1, 2):
                os.write(number, request["mark"].encode("ascii"))
            connection.sendall(json.dumps({"ok": ok, "images": images, "began_s": began_s}).encode("ascii") + b"\n")


if __name__ == "__main__":
    main()
