"""Turns whose calls touch the same state, and what their results are when the calls run in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import anyio

from hermes_agent import AgentLoop, Completion, Episode, ScriptedModel, ToolCall
from hermes_agent.models.scripted import call
from hermes_exec import SandboxPool, Slot
from hermes_exec.tools import HostTool, Toolbox, ToolOptions, tool

Results = Sequence[Mapping[str, Any]]
"""The results of the calls of a turn, in the order of the calls."""


class Turn(NamedTuple):
    """The calls of one turn. `is_right` judges their results; `leaves` is what the file `f`, which holds "old" before,
    holds afterwards (None: it does not matter). `options` are those of the toolbox.
    """

    calls: tuple[ToolCall, ...]
    is_right: Callable[[Results], bool] = lambda _: True
    leaves: str | None = None
    options: ToolOptions = ToolOptions()


def sh(command: str, **more: object) -> ToolCall:
    return call("terminal", {"command": command, **more})


def code(text: str) -> ToolCall:
    return call("execute_code", {"code": text})


def read(path: str = "f") -> ToolCall:
    return call("read_file", {"path": path})


def write(path: str, content: str) -> ToolCall:
    return call("write_file", {"path": path, "content": content})


def search(pattern: str, path: str = ".") -> ToolCall:
    return call("search_files", {"pattern": pattern, "path": path})


WRITERS: dict[str, Callable[[str, str], ToolCall]] = {
    "write_file": lambda _, new: write("f", f"{new}\n"),
    "patch": lambda old, new: call("patch", {"path": "f", "old_string": old, "new_string": new}),
    "terminal": lambda _, new: sh(f"echo {new} > f"),
    "pty": lambda _, new: sh(f"echo {new} > f", pty=True),
    "workdir": lambda _, new: sh(f"echo {new} > ../f", workdir="sub"),
    "execute_code": lambda _, new: code(f"open('f', 'w').write('{new}\\n')"),
    "hermes_tools": lambda _, new: code(f"import hermes_tools\nhermes_tools.write_file('f', '{new}\\n')"),
    "host": lambda _, new: call("host_write", {"text": f"{new}\n"}),
}
"""Tools that change the file `f` from one word to another."""

READERS: dict[str, Callable[[], ToolCall]] = {
    "read_file": read,
    "search_files": lambda: search("old|new", "f"),
    "terminal": lambda: sh("cat f"),
    "pty": lambda: sh("cat f", pty=True),
    "workdir": lambda: sh("cat ../f", workdir="sub"),
    "execute_code": lambda: code("print(open('f').read())"),
    "hermes_tools": lambda: code("import hermes_tools\nprint(hermes_tools.read_file('f')['content'])"),
    "host": lambda: call("host_read", {}),
}
"""Tools whose result has the word that the file `f` holds."""


def shows(result: Mapping[str, Any], word: str) -> bool:
    text = json.dumps(result)
    return word in text and {"old": "new", "new": "old"}[word] not in text


def _file_pairs() -> Iterator[tuple[str, Turn]]:
    for writer, write_new in WRITERS.items():
        for reader, look in READERS.items():
            yield f"{writer} {reader}", Turn((write_new("old", "new"), look()), lambda r: shows(r[1], "new"))
            yield (
                f"{reader} then {writer}",
                Turn((look(), write_new("old", "new")), lambda r: shows(r[0], "old"), "new\n"),
            )
        for later, write_last in WRITERS.items():
            yield f"{writer} then {later}", Turn((write_new("old", "new"), write_last("new", "last")), leaves="last\n")


def _outputs(*expected: str | None) -> Callable[[Results], bool]:
    """Judge results of commands and code by what they print; None for one of which it does not matter."""
    return lambda results: all(
        text is None or str(result.get("output")).split() == text.split()
        for result, text in zip(results, expected, strict=True)
    )


def _told(*expected: str) -> Callable[[Results], bool]:
    """Judge results of reads: `text`, `unchanged`, `warned` or `blocked`."""

    def tell(result: Mapping[str, Any]) -> str:
        if result.get("error_kind") == "repeated":
            return "blocked"
        if result.get("status") == "unchanged":
            return "unchanged"
        return "warned" if "_warning" in result else "text"

    return lambda results: [tell(result) for result in results] == [*expected]


_APPENDS = tuple(sh(f"echo {number} >> log") for number in range(6))
_KERNEL = ToolOptions(code_mode="kernel")
_CALLS_OF_CODE = """
from hermes_tools import patch, read_file, search_files, terminal, write_file
wrong = 0
for number in range(6):
    write_file('f', f'n{number}\\n')
    wrong += f'n{number}' not in read_file('f')['content']
    terminal(f'mkdir -p d{number} && cd d{number} && echo m{number} > f')
    wrong += f'm{number}' not in read_file('f')['content']
    patch(path='f', old_string='m', new_string='k', mode='replace')
    wrong += terminal('cat f; cd ..')['output'] != f'k{number}\\n'
    wrong += search_files('.', path='f')['total_count'] != 1
print(wrong)
"""
_CALLS_AFTER_CODE = """
import threading
from hermes_tools import terminal
begun = threading.Event()
def call_on():
    while True:
        terminal('echo once >> log')
        begun.set()
threading.Thread(target=call_on, daemon=True).start()
came = begun.wait(30)
"""
_ENTER = sh("mkdir deep && cd deep && echo new > f")

SPECIAL: dict[str, Turn] = {
    "six appends cat": Turn((*_APPENDS, sh("cat log")), _outputs(*[""] * 6, "0 1 2 3 4 5")),
    "write_file run": Turn((write("x.py", "print(6 * 7)\n"), sh("python3 x.py")), _outputs(None, "42")),
    "cd read_file": Turn((_ENTER, read()), lambda r: shows(r[1], "new")),
    "cd search_files": Turn((_ENTER, search("old|new")), lambda r: shows(r[1], "new")),
    "cd terminal": Turn((_ENTER, sh("cat f")), _outputs("", "new")),
    "cd pty": Turn((_ENTER, sh("cat f", pty=True)), _outputs("", "new")),
    "cd execute_code": Turn((_ENTER, code("print(open('f').read())")), _outputs("", "new")),
    "cd write_file": Turn(
        (_ENTER, write("f", "deeper\n"), sh("cat f ../f")), _outputs("", None, "deeper old"), "old\n"
    ),
    "cd patch": Turn(
        (_ENTER, WRITERS["patch"]("new", "last"), sh("cat f ../f")), _outputs("", None, "last old"), "old\n"
    ),
    "cd background": Turn(
        (
            _ENTER,
            sh("cat f > there.new && mv there.new there", background=True),
            sh("until cat there 2>/dev/null; do :; done"),
        ),
        _outputs("", None, "new"),
    ),
    "workdir terminal": Turn((sh("cat ../f", workdir="sub"), sh("cat f")), _outputs("old", "old")),
    "export terminal": Turn((sh("export X=new"), sh("echo $X")), _outputs("", "new")),
    "export execute_code": Turn((sh("export X=new"), code("import os\nprint(os.environ['X'])")), _outputs("", "new")),
    "function terminal": Turn((sh("f() { echo new; }"), sh("f")), _outputs("", "new")),
    "kernel kernel": Turn((code("x = 'new'"), code("print(x)")), _outputs("", "new"), options=_KERNEL),
    "kernel read_file": Turn(
        (WRITERS["execute_code"]("old", "new"), read()), lambda r: shows(r[1], "new"), options=_KERNEL
    ),
    "calls of code": Turn((code(_CALLS_OF_CODE),), _outputs("0")),
    "calls of code in a kernel": Turn((code(_CALLS_OF_CODE),), _outputs("0"), options=_KERNEL),
    "calls of code that has ended": Turn(
        (code(_CALLS_AFTER_CODE), sh("cp log before; sleep 0.3; cmp log before && echo same")),
        _outputs("", "same"),
        options=_KERNEL,
    ),
    "background process": Turn(
        (sh("sleep 100", background=True), call("process", {"action": "list"})),
        lambda r: "sleep 100" in json.dumps(r[1]),
    ),
    "remove read_file": Turn((sh("rm f"), read()), lambda r: r[1].get("error_kind") == "not_found"),
    "move read_file": Turn((sh("mv f g"), read("g")), lambda r: shows(r[1], "old")),
    "link read_file": Turn((sh("echo new > g && ln -sf g f"), read()), lambda r: shows(r[1], "new")),
    "host host": Turn((call("host_write", {"text": "new"}), call("host_read", {})), lambda r: shows(r[1], "new")),
    "read_file read_file": Turn((read(), read()), _told("text", "unchanged")),
    "read_file read_file by another name": Turn(
        (read(), read("sub/../f"), read("./f")), _told("text", "text", "unchanged")
    ),
    "read_file missing read_file": Turn((read(), read("missing"), read()), _told("text", "text", "unchanged")),
    "read_file thrice": Turn((read(), read(), read()), _told("text", "unchanged", "blocked")),
    "read_file write_file read_file": Turn((read(), write("f", "new\n"), read()), _told("text", "text", "text")),
    "read_file terminal write_file": Turn(
        (read(), sh("echo other > f"), write("f", "new\n")), _told("text", "text", "warned")
    ),
    "read_file write_file write_file": Turn(
        (read(), write("f", "a\n"), write("f", "b\n")), _told("text", "text", "text")
    ),
    "search_files four times": Turn((search("old"),) * 4, _told("text", "text", "warned", "blocked")),
    "search_files read_file search_files": Turn(
        (search("old"), search("old"), read(), search("old"), search("old")), _told(*["text"] * 5)
    ),
    "search_files in turn": Turn((search("old"), search("ol"), search("old"), search("old")), _told(*["text"] * 4)),
}
"""Turns that touch other state: the shell, processes, the code's variables, and what the model has seen."""

TURNS: dict[str, Turn] = {**dict(_file_pairs()), **SPECIAL}
SAMPLE = (
    "write_file read_file",
    "terminal read_file",
    "execute_code search_files",
    "hermes_tools terminal",
    "patch host",
    "read_file then terminal",
    "terminal then patch",
    "six appends cat",
    "write_file run",
    "cd read_file",
    "cd background",
    "calls of code",
    "calls of code in a kernel",
    "calls of code that has ended",
    "read_file missing read_file",
    "search_files read_file search_files",
)
"""Those that every run of the tests tries."""


class TurnModel:
    """Asks for the calls of a turn, then answers. `wrong` are the results that were not right, `asked` counts turns."""

    model = "turn"

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.asked = 0
        self.wrong: list[Results] = []

    def answer(self, messages: Sequence[Mapping[str, Any]]) -> Completion:
        """Return the completion that follows these messages."""
        results = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
        if not results:
            self.asked += 1
            return Completion("", self._turn.calls)
        if not self._turn.is_right(results):
            self.wrong.append(results)
        return Completion("done")

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], **sampling: object
    ) -> Completion:
        return self.answer(messages)


def host_tools(slot: Slot) -> tuple[HostTool, HostTool]:
    """Tools of the host that read and write the file `f` of a slot."""

    @tool
    async def host_write(text: str) -> str:
        """Write the file."""
        await slot.files.write_text("f", text)
        return "written"

    @tool
    async def host_read() -> str:
        """Read the file."""
        return await slot.files.read_text("f")

    return host_write, host_read


def results_of(episode: Episode) -> list[dict[str, Any]]:
    return [json.loads(record.content) for record in episode.tool_calls]


async def wrong_turns(pool: SandboxPool, turn: Turn, turns: int, slots: int, **loop: Any) -> list[Results]:
    """Run the turn so often, each time as the first turn of an episode in a clean slot, in so many slots at once.
    Return the results of those that were wrong.
    """
    wrong: list[Results] = []
    left = iter(range(turns))

    async def run() -> None:
        async with pool.slot() as slot:
            for _ in left:
                await slot.reset()
                await slot.files.write_text("f", "old\n")
                await slot.files.mkdir("sub")
                toolbox = Toolbox(
                    slot, ["terminal", "file", "code_execution"], tools=host_tools(slot), options=turn.options
                )
                model = ScriptedModel([Completion("", turn.calls), "done"])
                async with toolbox:
                    episode = await AgentLoop(model, toolbox, **loop).run("go")
                assert episode.finish == "answered", episode.errors
                results = results_of(episode)
                right = turn.is_right(results)
                if not right or (turn.leaves is not None and await slot.files.read_text("f") != turn.leaves):
                    wrong.append(results)

    async with anyio.create_task_group() as tasks:
        for _ in range(slots):
            tasks.start_soon(run)
    return wrong
