"""Background processes, terminals, sessions."""

from __future__ import annotations

import signal
import time

import anyio

from hermes_exec.errors import ConfigError, SlotClosed
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check


async def _until(process_output: object, wanted: bytes, within_s: float = 30.0) -> bytes:
    """Read a process's stream until the text has come."""
    seen = b""
    with anyio.fail_after(within_s):
        while wanted not in seen:
            seen += await process_output.receive()  # type: ignore[attr-defined]
    return seen


@check("background", "helper")
async def check_background_start_and_wait(ctx: Context) -> None:
    """A background process runs while other calls go on, and wait gives its result."""
    process = await ctx.background("sleep", 0.5)
    equal((await ctx.applet("echo", "meanwhile")).stdout, "meanwhile\n", "another call")
    that(process.pid > 0, f"pid {process.pid}")
    equal((await process.wait(20)).exit_code, 0, "exit code")
    equal((await process.wait(0)).exit_code, 0, "exit code when asked again")


@check("background", "helper")
async def check_background_exit_code(ctx: Context) -> None:
    """A background process's exit code or signal is reported."""
    equal((await (await ctx.background("exit", 7)).wait(20)).exit_code, 7, "exit code")
    result = await (await ctx.background("signal", 9)).wait(20)
    equal((result.exit_code, result.signal), (137, 9), "signal")


@check("background", "helper")
async def check_background_process_is_closed(ctx: Context) -> None:
    """Closing a process ends it if it runs, and the slot forgets it."""
    for process in (await ctx.background("exit", 7), await ctx.background("sleep", 300, ctx.mark)):
        await process.aclose()
        with raises(ProcessLookupError):
            await process.output()
    equal(await ctx.slot.spawned(), [], "remembered processes")
    await ctx.expect_none_left()


@check("background", "helper")
async def check_background_wait_gives_up(ctx: Context) -> None:
    """Wait with a timeout ends after it while the process lives on."""
    process = await ctx.background("sleep", 300)
    started = time.monotonic()
    with raises(TimeoutError):
        await process.wait(0.3)
    that(time.monotonic() - started < 30, "it waited too long")
    equal((await process.kill()).left, 0, "left")


@check("background", "helper")
async def check_background_output_by_offset(ctx: Context) -> None:
    """A process's output is read by offset, as often as wanted, also after its end."""
    process = await ctx.background("spew", 5000)
    await process.wait(20)
    first, offset = await process.output(0)
    equal((first, offset), (b"0123456789" * 500, 5000), "all")
    equal((await process.output(4990))[0], b"0123456789", "from an offset")
    equal((await process.output(5000))[0], b"", "at the end")


@check("background", "helper")
async def check_background_streams(ctx: Context) -> None:
    """Stdout and stderr of a background process are streams that end with it."""
    process = await ctx.background("alternate", 3, 0.05)
    out = b"".join([piece async for piece in process.stdout])
    err = b"".join([piece async for piece in process.stderr]) if process.stderr else b""
    equal((out, err), (b"out 0\nout 1\nout 2\n", b"err 0\nerr 1\nerr 2\n"), "streams")


@check("background", "helper")
async def check_background_large_output_is_followed(ctx: Context) -> None:
    """A reader of a process's stream gets every byte of a large output."""
    process = await ctx.background("spew", 20_000_000)
    size = 0
    async for piece in process.stdout:
        size += len(piece)
    equal(size, 20_000_000, "bytes")


@check("background", "helper")
async def check_background_stdin(ctx: Context) -> None:
    """Stdin of a background process is written piece by piece and closed."""
    process = await ctx.background("cat", stdin=True)
    if process.stdin is None:
        raise AssertionError("stdin=True gave no stdin")
    await process.stdin.send(b"one\n")
    await _until(process.stdout, b"one\n")
    await process.stdin.send(b"two\n")
    await process.stdin.aclose()
    equal((await process.wait(20)).exit_code, 0, "exit code")
    equal((await process.output(0))[0], b"one\ntwo\n", "output")


@check("background", "helper")
async def check_background_signal(ctx: Context) -> None:
    """A signal reaches the process. An ignored signal does not end it, and kill does."""
    process = await ctx.background("stubborn", 60)
    await _until(process.stdout, b"ready")
    await process.signal(signal.SIGTERM)
    with raises(TimeoutError):
        await process.wait(0.3)
    receipt = await process.kill()
    equal((receipt.left, (await process.wait(10)).exit_code), (0, 137), "left, exit code")


@check("background", "helper")
async def check_background_kill_takes_the_tree(ctx: Context) -> None:
    """Killing a background process ends everything that it started, runaways too."""
    process = await ctx.background("tree", 120, ctx.mark)
    await _until(process.stdout, b"ready")
    await ctx.expect_alive(9)
    receipt = await process.kill()
    equal(receipt.left, 0, "left")
    await ctx.expect_none_left()


@check("background", "helper", "procfs")
async def check_processes_are_listed(ctx: Context) -> None:
    """processes() returns pid, arguments, start and memory of all processes of the slot, and of no others."""
    process = await ctx.background("sleep", 60, ctx.mark)
    await ctx.expect_alive(1)
    with anyio.move_on_after(10):
        while True:
            mine = [p for p in await ctx.slot.processes() if ctx.mark in p.argv]
            if [p for p in mine if p.rss_bytes]:  # kernels count the first pages of a program late
                break
            await anyio.sleep(0.05)
    equal(len(mine), 1, "processes with the mark")
    that(mine[0].rss_bytes > 0 and abs(mine[0].started_at - time.time()) < 300, f"{mine[0]}")
    await process.kill()
    that(not [p for p in await ctx.slot.processes() if ctx.mark in p.argv], "it is listed after its end")


@check("background", "helper")
async def check_twenty_background_processes(ctx: Context) -> None:
    """Many background processes have handles of their own, and kill_all ends them all."""
    started = [await ctx.background("sleep", 60, ctx.mark) for _ in range(20)]
    equal(len({p.id for p in started}), 20, "ids")
    receipt = await ctx.slot.kill_all()
    that(receipt.found >= 20 and receipt.left == 0, f"receipt {receipt}")
    await ctx.expect_none_left()


@check("background", "helper")
async def check_background_missing_program(ctx: Context) -> None:
    """A missing background program is reported, by a result of 127 or at once."""
    try:
        process = await ctx.slot.spawn(["no-such-program-here"])
    except OSError:
        return
    equal((await process.wait(20)).exit_code, 127, "exit code")


@check("pty", "helper")
async def check_pty_is_a_terminal(ctx: Context) -> None:
    """With pty a program has a terminal of the size that was asked for."""
    process = await ctx.background("tty", pty=(33, 101))
    await process.wait(20)
    equal((await process.output(0))[0].strip(), b"33 101", "rows and columns")
    equal((await ctx.applet("tty")).stdout.strip(), "no", "without pty")


@check("pty", "shell")
async def check_pty_resize(ctx: Context) -> None:
    """A terminal changes its size while the program runs."""
    process = await ctx.slot.spawn(
        "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done", pty=(20, 70)
    )
    first = await _until(process.stdout, b"\n")
    if b"20 70" not in first:
        await process.kill()
        raise NotGiven(f"the image has no program stty: {first[:100]!r}")
    await process.resize(30, 90)
    that(b"30 90" in await _until(process.stdout, b"\n"), "the new size was not seen")
    await process.wait(10)


@check("pty", "shell")
async def check_pty_ctrl_c(ctx: Context) -> None:
    """Ctrl-C typed into the terminal interrupts the program in the foreground."""
    process = await ctx.slot.spawn(
        "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.05; done", pty=(24, 80)
    )
    await _until(process.stdout, b"ready")
    if process.stdin is None:
        raise AssertionError("a terminal has no stdin")
    await process.stdin.send(b"\x03")
    await _until(process.stdout, b"interrupted")
    equal((await process.wait(10)).exit_code, 5, "exit code")


@check("pty", "shell")
async def check_pty_dialogue(ctx: Context) -> None:
    """A program reads typed input line by line, with echo."""
    process = await ctx.slot.spawn("printf 'name? '; read name; echo \"hello $name\"", pty=(24, 80))
    await _until(process.stdout, b"name? ")
    if process.stdin is None:
        raise AssertionError("a terminal has no stdin")
    await process.stdin.send(b"ada\n")
    await _until(process.stdout, b"hello ada")
    equal((await process.wait(10)).exit_code, 0, "exit code")


def _keeps(ctx: Context, what: str) -> None:
    if what not in ctx.facts.keeps:
        raise NotGiven(
            f"the image's shell ({ctx.facts.shell}) cannot keep {what}; it keeps {', '.join(ctx.facts.keeps)}"
        )


async def _output_of(session: object, command: str) -> str:
    result = await session.run(command)  # type: ignore[attr-defined]
    return str(result.stdout).strip()


@check("sessions", "shell")
async def check_session_keeps_the_directory(ctx: Context) -> None:
    """Cd lasts from one command of a session to the next."""
    session = ctx.slot.session()
    await session.run("mkdir -p 'a b' && cd 'a b'")
    equal(await _output_of(session, "pwd"), f"{ctx.slot.workspace}/a b", "directory")


@check("sessions", "shell")
async def check_session_keeps_variables(ctx: Context) -> None:
    """Variables last, exported or not, with any text in them, and unset is kept too."""
    session = ctx.slot.session()
    await session.run("plain='it'\"'\"'s $x'; export OUT='two\nlines'; export GONE=1")
    await session.run("unset GONE")
    equal(
        await _output_of(session, 'echo "$plain|$OUT|$GONE|"; sh -c \'echo "$plain|$OUT"\''),
        "it's $x|two\nlines||\n|two\nlines",
        "variables",
    )


@check("sessions", "shell")
async def check_session_keeps_functions(ctx: Context) -> None:
    """Functions last from one command of a session to later ones."""
    _keeps(ctx, "functions")
    session = ctx.slot.session()
    await session.run('greet() { echo "hello $1"; }')
    await session.run("true")
    equal(await _output_of(session, "greet you"), "hello you", "output")


@check("sessions", "shell")
async def check_session_keeps_aliases(ctx: Context) -> None:
    """Aliases last beyond the second command."""
    _keeps(ctx, "aliases")
    session = ctx.slot.session()
    await session.run("alias hi='echo aliased'")
    await session.run("true")
    equal(await _output_of(session, "hi there"), "aliased there", "output")


@check("sessions", "shell")
async def check_session_keeps_umask_and_options(ctx: Context) -> None:
    """Umask and shell options last."""
    _keeps(ctx, "umask")
    session = ctx.slot.session()
    await session.run("umask 027; set -f")
    equal(await _output_of(session, "umask; echo *"), "0027\n*", "umask, noglob")


@check("sessions", "shell")
async def check_session_peek_runs_beside_its_command(ctx: Context) -> None:
    """A peek has the state of a session, while a command of the session waits for it, and leaves the state alone."""
    session, running = ctx.slot.session(), anyio.Event()
    mark = f"{ctx.slot.tmp}/peeked"

    async def wait_for_peek() -> None:
        await session.run(f"x=2; echo; until test -e {mark}; do :; done", on_output=lambda *_: running.set())

    await session.run("x=1; cd /")
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_peek)
            await running.wait()
            peek = await session.peek(f'echo "$x $PWD"; x=3; cd {ctx.slot.tmp}; : > peeked')
    equal(peek.stdout, "1 /\n", "output of the peek")
    equal(await _output_of(session, 'echo "$x $PWD"'), "2 /", "state")


@check("sessions", "shell")
async def check_session_processes_start_from_its_state(ctx: Context) -> None:
    """A background process of a session has its state, also on a terminal and also as a very long command."""
    session = ctx.slot.session()
    await session.run("x=1; export E=2; umask 077; cd /")
    for pty in (False, True):
        for filler in ("", f": {'y' * 100_000}; "):
            process = await session.spawn(f'{filler}echo "$x $E $PWD"; umask', pty=pty)
            await process.wait(30)
            lines = (await process.output(0))[0].decode().split()
            equal(lines, ["1", "2", "/", "0077"], f"the state with pty={pty} and {len(filler)} characters more")


@check("sessions", "shell")
async def check_session_survives_exit(ctx: Context) -> None:
    """`exit` ends the command with its code, keeps the state before it, and not the session."""
    session = ctx.slot.session()
    equal((await session.run("x=1; cd /; exit 3")).exit_code, 3, "exit code")
    equal(await _output_of(session, 'echo "$x $PWD"'), "1 /", "state")


@check("sessions", "shell")
async def check_session_survives_exec(ctx: Context) -> None:
    """`exec` replaces the shell of that command only; the next one has the state from before it, and reports the loss.
    Closed output and low limits cost no state.
    """
    session = ctx.slot.session()
    await session.run("x=1")
    result = await session.run("x=2; exec echo replaced")
    equal(result.stdout, "replaced\n", "stdout")
    that(result.state_lost is not None and "exec" in result.state_lost, f"state_lost is {result.state_lost!r}")
    equal(await _output_of(session, 'echo "$x"'), "1", "state")
    result = await session.run("x=3; exec >&- 2>&- 3>&- 4>&- 5>&-; ulimit -n 20; ulimit -f 0; cd /")
    equal(result.state_lost, None, "state_lost")
    equal(await _output_of(session, 'echo "$x $PWD"'), "3 /", "state without descriptors")


@check("sessions", "shell")
async def check_session_survives_set_e(ctx: Context) -> None:
    """A command that fails under `set -e` ends with its code, and the session goes on."""
    session = ctx.slot.session()
    result = await session.run("set -e; y=kept; false; echo never")
    that(result.exit_code != 0 and "never" not in result.stdout, f"exit code {result.exit_code}, {result.stdout!r}")
    equal(await _output_of(session, 'set +e; echo "$y"'), "kept", "state")


@check("sessions", "shell")
async def check_session_survives_a_timeout(ctx: Context) -> None:
    """After a command that timed out the session continues, with its state from before the command or from its end."""
    session = ctx.slot.session()
    await session.run("z=1; y=kept")
    that((await session.run("z=2; sleep 60", timeout_s=0.5)).timed_out, "it did not time out")
    that(await _output_of(session, 'echo "$z $y"') in {"1 kept", "2 kept"}, "the state is gone")


@check("sessions", "shell")
async def check_session_survives_syntax_errors(ctx: Context) -> None:
    """A syntax error is a failure of that command, and output that looks like markers is only output."""
    session = ctx.slot.session()
    await session.run("w=1")
    that((await session.run("if then (")).exit_code != 0, "exit code 0 for a syntax error")
    result = await session.run("echo '__EXIT__ 0 __CWD__ /'; echo $?; false")
    equal((result.exit_code, result.stdout), (1, "__EXIT__ 0 __CWD__ /\n0\n"), "result")
    equal(await _output_of(session, 'echo "$w"'), "1", "state")


@check("sessions", "shell")
async def check_session_commands_run_in_order(ctx: Context) -> None:
    """Calls of one session run one after the other, in the order in which they were made."""
    session = ctx.slot.session()
    await session.run("n=''")
    async with anyio.create_task_group() as tasks:
        for i in range(6):
            tasks.start_soon(session.run, f'n="${{n}}{i}"; sleep 0.0{6 - i}')
    equal(await _output_of(session, 'echo "$n"'), "012345", "order")


@check("sessions", "shell")
async def check_sessions_are_apart(ctx: Context) -> None:
    """Two sessions of a slot run side by side and share no state."""
    first, second = ctx.slot.session(), ctx.slot.session()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.run, "who=first; cd /; sleep 0.1")
        tasks.start_soon(second.run, "who=second; sleep 0.1")
    equal(
        [await _output_of(s, 'echo "$who $PWD"') for s in (first, second)],
        ["first /", f"second {ctx.slot.workspace}"],
        "states",
    )


@check("sessions", "shell", "helper")
async def check_session_background_job_lives_on(ctx: Context) -> None:
    """A job that a session starts with & outlives its command and does not hold the call."""
    argv = " ".join(f"'{word}'" for word in await ctx.argv("sleep", 100, ctx.mark))
    session = ctx.slot.session()
    started = time.monotonic()
    await session.run(f"{argv} & echo started")
    that(time.monotonic() - started < 10, "it waited for the job")
    await ctx.expect_alive(1)
    await ctx.slot.reset()
    with raises(SlotClosed):
        await session.run("true")
    await ctx.expect_none_left()


@check("sessions")
async def check_session_takes_text_only(ctx: Context) -> None:
    """A list for a session, and a session in an image without a shell, are ConfigErrors with a remedy."""
    session = ctx.slot.session()
    with raises(ConfigError):
        await session.run(["echo"])  # type: ignore[arg-type]
    if "shell" in ctx.facts.missing:
        with raises(ConfigError):
            await session.run("echo")
