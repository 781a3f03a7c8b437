"""Running commands: output, exit codes, arguments, scripts, working directory."""

from __future__ import annotations

import json
import shlex

import anyio

from hermes_exec.errors import CommandFailed, ConfigError
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check

UNICODE = "café résumé €100 中文 😀"
OCTAL = "".join(f"\\{byte:03o}" for byte in UNICODE.encode())


@check("commands", "shell")
async def check_stdout_and_exit_zero(ctx: Context) -> None:
    """A command's stdout arrives whole, its exit code is 0, and nothing stands in stderr."""
    result = await ctx.slot.run("echo foo; echo bar")
    equal((result.stdout, result.stderr, result.exit_code, result.ok), ("foo\nbar\n", "", 0, True), "result")


@check("commands", "shell")
async def check_stderr_is_apart(ctx: Context) -> None:
    """Stdout and stderr are kept apart."""
    result = await ctx.slot.run("echo boof; echo baz >&2")
    equal((result.stdout, result.stderr), ("boof\n", "baz\n"), "streams")


@check("commands", "shell")
async def check_utf8_on_stdout(ctx: Context) -> None:
    """UTF-8 made inside the sandbox is text outside."""
    equal((await ctx.slot.run(f"printf '{OCTAL}'")).stdout, UNICODE, "stdout")


@check("commands", "shell")
async def check_utf8_on_stderr(ctx: Context) -> None:
    """UTF-8 made inside the sandbox is text outside, on stderr too."""
    equal((await ctx.slot.run(f"printf '{OCTAL}' >&2")).stderr, UNICODE, "stderr")


@check("commands", "helper")
async def check_any_bytes_on_stdout(ctx: Context) -> None:
    """Bytes that are no text, NUL included, are exact in stdout_bytes; the text has replacement characters."""
    data = bytes(range(256)) * 20
    await ctx.slot.files.write_bytes("data", data)
    result = await ctx.applet("cat", "data")
    equal(result.stdout_bytes, data, "bytes")
    that("\ufffd" in result.stdout, "no replacement character in the text")


@check("commands", "helper")
async def check_every_exit_code(ctx: Context) -> None:
    """The exit code is the program's, and a failure is a result."""
    codes = (1, 2, 70, 126, 127, 128, 143, 255)
    seen = [(await ctx.applet("exit", code)).exit_code for code in codes]
    equal(seen, list(codes), "exit codes")


@check("commands", "shell")
async def check_exit_code_of_a_script(ctx: Context) -> None:
    """A script's exit code comes from `exit` or from its last command."""
    equal(
        [(await ctx.slot.run(text)).exit_code for text in ("echo foo; exit 70", "true; false", "false; true")],
        [70, 1, 0],
        "exit codes",
    )


@check("commands", "helper")
async def check_signal_death_is_no_timeout(ctx: Context) -> None:
    """A command that dies of a signal has 128 + signal and the signal's number, and did not time out."""
    for number in (15, 9, 1):
        result = await ctx.applet("signal", number, timeout_s=30)
        equal(
            (result.exit_code, result.signal, result.timed_out, result.ok),
            (128 + number, number, False, False),
            f"signal {number}",
        )


@check("commands", "helper")
async def check_argv_is_not_interpreted(ctx: Context) -> None:
    """A sequence is argv: no shell sees it, empty and odd arguments arrive as they are."""
    words = ["", " ", "$HOME", "`id`", "a'b\"c", "*", "new\nline", "\\", "-x", "ü"]
    equal(json.loads((await ctx.applet("args", *words)).stdout), words, "arguments")


@check("commands", "helper")
async def check_large_argv(ctx: Context) -> None:
    """A MiB of arguments arrives whole."""
    words = ["x" * (64 * 1024)] * 16
    result = await ctx.applet("echo", *words, output_limit_bytes=4 << 20)
    equal(result.stdout, " ".join(words) + "\n", "arguments")


@check("commands", "helper")
async def check_argument_beyond_the_systems_limit(ctx: Context) -> None:
    """An argument that the system refuses is exit 126 with the reason, no exception."""
    result = await ctx.applet("echo", "x" * (3 << 20))
    equal(result.exit_code, 126, "exit code")
    that("long" in result.stderr.lower(), f"no reason on stderr: {result.stderr!r}")


@check("commands", "shell", timeout_s=90)
async def check_script_of_five_mebibytes(ctx: Context) -> None:
    """A command of 5 MiB runs by the same exit rules as a short one."""
    padding = "# " + "x" * 1000 + "\n"
    text = padding * (5 * 1024 * 1024 // len(padding)) + "echo end; false"
    result = await ctx.slot.run(text)
    equal((result.stdout, result.exit_code), ("end\n", 1), "result")


@check("commands", "shell")
async def check_script_of_200_kib(ctx: Context) -> None:
    """A command above the system's limit for one argument runs."""
    word = "y" * 200_000
    equal(len((await ctx.slot.run(f"echo {word}", output_limit_bytes=1 << 20)).stdout), 200_001, "bytes")


@check("commands", "shell")
async def check_script_text_is_exact(ctx: Context) -> None:
    """Quotes, here-documents, comments, dollar signs and line ends of a script mean the same as in a file."""
    text = "# a comment ' \"\ncat <<'END'\n$HOME `id` \\\nEND\nprintf '%s|' \"a b\" 'c\"d' $'e' 2>/dev/null\n"
    result = await ctx.slot.run(text)
    that(result.stdout.startswith('$HOME `id` \\\na b|c"d|'), f"output {result.stdout!r}")


@check("commands", "shell")
async def check_missing_program_is_127(ctx: Context) -> None:
    """A program that is not there is exit 127 with the reason on stderr, by argv and by shell."""
    for command in (["no-such-program-here"], ["/no/such/program"], "no-such-program-here"):
        result = await ctx.slot.run(command)
        equal(result.exit_code, 127, f"exit code of {command!r}")
        that(result.stderr.strip(), f"nothing on stderr for {command!r}")


@check("commands")
async def check_no_shell_is_told(ctx: Context) -> None:
    """In an image without a shell a string is exit 127, and the message asks for a list."""
    if "shell" not in ctx.facts.missing:
        result = await ctx.slot.run(["no-such-program-here"])
        equal(result.exit_code, 127, "exit code")
        return
    result = await ctx.slot.run("echo hello")
    equal(result.exit_code, 127, "exit code")
    that("list" in result.stderr, f"stderr names no remedy: {result.stderr!r}")


@check("commands")
async def check_not_executable_is_126(ctx: Context) -> None:
    """A file without the permission to execute is exit 126 with the reason."""
    await ctx.slot.files.write_text("data", "no program")
    result = await ctx.slot.run([f"{ctx.slot.workspace}/data"])
    equal(result.exit_code, 126, "exit code")
    that("ermission" in result.stderr, f"no reason on stderr: {result.stderr!r}")


@check("commands", "shell")
async def check_relative_program(ctx: Context) -> None:
    """A relative path to a program is relative to the working directory."""
    await ctx.slot.files.write_bytes("bin/tool", b"#!/bin/sh\necho tool\n", mode=0o755)
    equal((await ctx.slot.run(["./bin/tool"])).stdout, "tool\n", "from the workspace")
    equal((await ctx.slot.run(["./tool"], cwd="bin")).stdout, "tool\n", "from its directory")


@check("commands", "shell")
async def check_no_startup_files_are_read(ctx: Context) -> None:
    """Startup files in HOME do not change commands."""
    home = ctx.slot.home
    for name in (".bashrc", ".profile", ".bash_profile", ".shrc"):
        try:
            await ctx.slot.files.write_text(f"{home}/{name}", "echo intruder\n")
        except OSError as error:
            raise NotGiven(f"HOME cannot be written to: {error}") from error
    result = await ctx.slot.run("echo clean")
    equal(result.stdout, "clean\n", "stdout")


@check("commands", "helper")
async def check_facts_of_a_run(ctx: Context) -> None:
    """A result reports time, CPU, memory, byte counts and its request."""
    result = await ctx.applet("grow", 40, 0.2)
    that(0.15 < result.duration_s < 30, f"duration_s {result.duration_s}")
    that(result.usage.max_rss_bytes >= 40 << 20, f"max_rss_bytes {result.usage.max_rss_bytes}")
    that(result.usage.user_s + result.usage.system_s > 0, "no CPU time")
    equal((result.stdout_total_bytes, result.stderr_total_bytes, result.truncated), (6, 0, False), "counts")
    other = await ctx.applet("exit", 0)
    that((other.request_id or 0) > (result.request_id or 0) > 0, "request ids do not rise")


@check("commands", "helper")
async def check_check_raises(ctx: Context) -> None:
    """check=True turns a failure into CommandFailed with the result; without it a failure is a result."""
    with raises(CommandFailed) as caught:
        await ctx.applet("exit", 3, check=True)
    equal(getattr(caught.error, "result").exit_code, 3, "exit code")  # noqa: B009 - typed as BaseException


@check("commands", "helper")
async def check_run_many_keeps_the_order(ctx: Context) -> None:
    """run_many gives results in the order of the commands, also when one fails."""
    argv = await ctx.argv("echo")
    commands = [[*argv, str(i)] if i != 3 else [argv[0], "exit", "9"] for i in range(12)]
    results = await ctx.slot.run_many(commands, limit=4)
    equal([r.stdout.strip() or r.exit_code for r in results], ["0", "1", "2", 9, *map(str, range(4, 12))], "results")


@check("commands", "helper")
async def check_many_commands_at_once(ctx: Context) -> None:
    """Forty commands side by side each get their own output."""
    argv = await ctx.argv("cat")

    async def one(i: int) -> None:
        text = f"{i} " * 500
        equal((await ctx.slot.run(argv, stdin=text)).stdout, text, f"command {i}")

    async with anyio.create_task_group() as tasks:
        for i in range(40):
            tasks.start_soon(one, i)


@check("commands", "helper")
async def check_nothing_is_inherited(ctx: Context) -> None:
    """A command starts with descriptors 0, 1 and 2 only, no ignored or blocked signals, umask 022 and no new
    privileges to gain.
    """
    equal((await ctx.applet("fds")).stdout.strip(), "", "other descriptors")
    equal((await ctx.applet("umask")).stdout.strip(), "022", "umask")


@check("commands", "helper", "procfs")
async def check_signals_start_as_default(ctx: Context) -> None:
    """A command starts with no signal ignored and none blocked."""
    result = await ctx.applet("status", "SigBlk", "SigIgn")
    masks = [int(line.split()[1], 16) for line in result.stdout.splitlines()]
    if result.ok and not masks:
        raise NotGiven("this kernel does not show them")
    # 32 and 33 belong to the C library's threads.
    equal([mask & ~0x180000000 for mask in masks], [0, 0], "SigBlk, SigIgn")


@check("cwd", "helper")
async def check_cwd_is_the_workspace(ctx: Context) -> None:
    """Without cwd a command runs in the slot's workspace, which starts empty."""
    equal(await ctx.slot.files.list("."), [], "workspace")
    equal((await ctx.applet("cwd")).stdout.strip(), ctx.slot.workspace, "cwd")


@check("cwd", "helper")
async def check_cwd_absolute(ctx: Context) -> None:
    """An absolute cwd is used as it is, also outside the workspace."""
    path = f"{ctx.slot.tmp}/{ctx.mark}"
    await ctx.slot.files.write_text(f"{path}/there", "")
    equal((await ctx.applet("cwd", cwd=path)).stdout.strip(), path, "cwd")


@check("cwd", "shell")
async def check_cwd_of_the_image(ctx: Context) -> None:
    """A directory of the image may be the working directory."""
    listed = await ctx.slot.run("ls", cwd="/bin")
    that("sh" in listed.stdout.split(), f"no sh in /bin: {listed.stdout[:200]!r}")


@check("cwd", "helper")
async def check_cwd_relative(ctx: Context) -> None:
    """A relative cwd is relative to the workspace; odd names are no trouble."""
    for name in ("sub dir/(x) [y]", "ünï'$"):
        await ctx.slot.files.mkdir(name, parents=True)
        equal((await ctx.applet("cwd", cwd=name)).stdout.strip(), f"{ctx.slot.workspace}/{name}", "cwd")


@check("cwd", "helper")
async def check_missing_cwd_is_told(ctx: Context) -> None:
    """A cwd that is missing or a file is an error that names it, before anything runs."""
    await ctx.slot.files.write_text("file", "")
    for name in ("absent", "file"):
        with raises(ConfigError, OSError, about=name):
            await ctx.applet("write", f"{ctx.slot.workspace}/ran", cwd=name, stdin=b"")
    that(not await ctx.slot.files.exists("ran"), "the command ran")


@check("bad input", "helper")
async def check_nul_byte_in_a_command(ctx: Context) -> None:
    """A NUL byte in a command, an argument, a path or a variable is ConfigError before anything runs."""
    argv = await ctx.argv("exit", 0)
    for command, env in (("echo a\0b", None), ([*argv, "a\0b"], None), (argv, {"A": "x\0"}), (argv, {"A\0": "x"})):
        with raises(ConfigError):
            await ctx.slot.run(command, env=env)
    with raises(ConfigError):
        await ctx.slot.files.read_bytes("a\0b")


@check("bad input", "helper")
async def check_impossible_arguments(ctx: Context) -> None:
    """An empty argv, a timeout that is not positive, a name of a variable with `=` and an empty path are
    ConfigErrors.
    """
    argv = await ctx.argv("exit", 0)
    with raises(ConfigError):
        await ctx.slot.run([])
    for timeout_s in (0, -1, float("nan")):
        with raises(ConfigError):
            await ctx.slot.run(argv, timeout_s=timeout_s)
    for name in ("A=B", ""):
        with raises(ConfigError):
            await ctx.slot.run(argv, env={name: "x"})
    with raises(ConfigError):
        await ctx.slot.run(argv, output_limit_bytes=-1)
    equal((await ctx.slot.run(argv)).exit_code, 0, "the slot afterwards")


@check("commands", "bash")
async def check_best_shell_is_bash(ctx: Context) -> None:
    """Where bash is in the image, a string is run by it."""
    equal((await ctx.slot.run('a=(1 2 3); [[ -n "$BASH_VERSION" ]] && echo "${#a[@]}"')).stdout, "3\n", "stdout")


@check("commands", "python")
async def check_python_in_the_image(ctx: Context) -> None:
    """A program of the image runs with code given as an argument and as a file."""
    code = "import sys; print(sys.argv[1] * 2)"
    await ctx.slot.files.write_text("code.py", code)
    by_argument = await ctx.slot.run(["python3", "-c", code, "ab"])
    by_file = await ctx.slot.run(f"python3 code.py {shlex.quote('a b')}")
    equal((by_argument.stdout, by_file.stdout), ("abab\n", "a ba b\n"), "output")
