"""Variables and users."""

from __future__ import annotations

import os

from hermes_exec.errors import ConfigError
from hermes_exec.testing.conformance.context import Context
from hermes_exec.testing.conformance.expect import equal, raises, that
from hermes_exec.testing.conformance.registry import NotGiven, check


async def _variables(ctx: Context) -> dict[str, str]:
    result = await ctx.applet("env")
    return dict(line.partition("=")[::2] for line in result.stdout.splitlines())


@check("environment", "helper")
async def check_variables_of_a_call(ctx: Context) -> None:
    """Variables of the call arrive as they are: spaces, quotes, line ends, `=`, empty, not ASCII."""
    variables = {"A": "chonko zamboodle", "B": "'\"$A`id`\\", "C": "two\nlines", "D": "a=b", "E": "", "F": "ü"}
    for name, value in variables.items():
        equal((await ctx.applet("env", name, env=variables)).stdout, f"{value}\n", name)


@check("environment", "shell")
async def check_variables_reach_the_shell(ctx: Context) -> None:
    """Variables of the call are seen by a script."""
    result = await ctx.slot.run('echo "$ONE; $TWO"', env={"ONE": "1 1", "TWO": "2"})
    equal(result.stdout, "1 1; 2\n", "stdout")


@check("environment", "helper")
async def check_variables_end_with_the_call(ctx: Context) -> None:
    """A variable of one call is not there in the next."""
    await ctx.applet("env", "ONCE", env={"ONCE": "x"})
    equal((await ctx.applet("env", "ONCE")).exit_code, 1, "exit code of reading it")


@check("environment", "helper")
async def check_home_tmp_and_user(ctx: Context) -> None:
    """HOME, TMPDIR, USER, PATH and LANG are set; tmp is writable, and home too where it is not the image's."""
    seen = await _variables(ctx)
    equal((seen.get("HOME"), seen.get("TMPDIR")), (ctx.slot.home, ctx.slot.tmp), "HOME, TMPDIR")
    that(seen.get("USER") and seen.get("PATH"), f"USER or PATH are missing: {sorted(seen)}")
    that("UTF-8" in seen.get("LANG", "") or "LC_ALL" in seen, f"LANG is {seen.get('LANG')!r}")
    for directory in (ctx.slot.tmp,) if ctx.facts.image_home else (ctx.slot.home, ctx.slot.tmp):
        equal((await ctx.applet("open", f"{directory}/mine", "c")).stdout.strip(), "ok", f"writing into {directory}")


@check("environment", "helper")
async def check_drivers_environment_stays_out(ctx: Context) -> None:
    """Nothing of the driver's own environment is in a slot, whatever its name."""
    # It stays: a thread that reads the environment of the process meanwhile fails where a variable goes.
    name = "SECRET_OF_CONFORMANCE"
    os.environ[name] = "hunter2"
    seen = await _variables(ctx)
    that(name not in seen and "hunter2" not in seen.values(), "the driver's variable is in the slot")
    shared = {key for key in seen if os.environ.get(key) == seen[key]} - {
        "PATH",
        "LANG",
        "LC_ALL",
        "TZ",
        "TERM",
        "USER",
        "LOGNAME",
        "SHELL",
        "HOME",
    }
    leaked = sorted(
        key
        for key in shared
        if key.startswith(("AWS_", "GITHUB_", "SSH_", "OPENAI_", "HERMES_", "VIRTUAL_ENV", "PYTHON"))
    )
    equal(leaked, [], "variables of the driver")


@check("environment", "helper", own_pool=True)
async def check_variables_files_and_secrets_of_a_pool(ctx: Context) -> None:
    """A pool's variables, secrets and files are in each slot, and a call's variables win."""
    source = ctx.directory / "local.txt"
    source.write_text("from a file")
    overrides = {
        "env": {"POOLED": "pool", "BOTH": "pool"},
        "secrets": {"TOKEN": "s3cr3t"},
        "files": {"given/a.txt": b"from bytes", "given/b.txt": source},
    }
    async with ctx.pool(**overrides) as pool, pool.slot() as slot:
        values = [
            (await ctx.applet("env", name, slot=slot, env={"BOTH": "call"})).stdout.strip()
            for name in ("POOLED", "BOTH", "TOKEN")
        ]
        equal(values, ["pool", "call", "s3cr3t"], "variables")
        equal(
            [await slot.files.read_text(f"given/{name}.txt") for name in "ab"], ["from bytes", "from a file"], "files"
        )


@check("environment", "shell", own_pool=True)
async def check_setup_of_a_pool(ctx: Context) -> None:
    """A pool's setup command runs before the first slot is acquired."""
    async with ctx.pool(setup="true") as pool, pool.slot() as slot:
        equal((await slot.run("echo acquired")).stdout, "acquired\n", "stdout")


@check("users", "root", "helper")
async def check_run_as_root(ctx: Context) -> None:
    """Where the slot is a whole sandbox, user="root" is uid 0."""
    equal((await ctx.applet("id", user="root")).stdout.split()[0], "0", "uid")


@check("users", "image-users")
async def check_run_as_another_user(ctx: Context) -> None:
    """Where the slot is a whole sandbox, a user of the image runs commands, and the next call has the old one again."""
    before = (await ctx.applet("id")).stdout
    other = (await ctx.applet("id", user="nobody")).stdout.split()[0]
    that(other != "0", "nobody is uid 0")
    equal((await ctx.applet("id")).stdout, before, "uid of the next call")


@check("users", "image-users")
async def check_files_as_another_user(ctx: Context) -> None:
    """Where the slot is a whole sandbox, a file call has the rights of a user of the image, the next one its own."""
    files, path = ctx.slot.files, f"{ctx.slot.tmp}/of-nobody"
    other = (await ctx.applet("id", user="nobody")).stdout.split()[0]
    await files.mkdir(path, mode=0o700)
    with raises(PermissionError):
        await files.write_text(f"{path}/file", "x", user="nobody")
    await files.chmod(path, 0o777)
    await files.write_text(f"{path}/file", "x", user="nobody")
    await files.write_text(f"{path}/mine", "x")
    owners = {entry.name: entry.uid for entry in await files.list(path, user="nobody")}
    equal(owners, {"file": int(other), "mine": ctx.slot.uid}, "owners")


@check("users")
async def check_files_of_a_forbidden_user_are_refused(ctx: Context) -> None:
    """A file call of an unknown user, or of another one where commands cannot have it, is a ConfigError."""
    refused = ["no-such-user", *(["root"] if "root" in ctx.facts.missing and ctx.slot.uid else [])]
    for user in refused:
        with raises(ConfigError, about=user):
            await ctx.slot.files.write_text("written", "x", user=user)
    equal(await ctx.slot.files.exists("written"), False, "a file was written")


@check("users", "shell")
async def check_the_user_has_a_name(ctx: Context) -> None:
    """The slot's user has a name where programs look for it."""
    result = await ctx.slot.run("id -un")
    if result.exit_code == 127:
        raise NotGiven("the image has no program `id`")
    if not result.ok and ctx.facts.isolation.level == "uid" and ctx.facts.image is None:
        raise NotGiven("users of slots are not written into the /etc/passwd of a machine that others use")
    that(result.ok and result.stdout.strip(), f"id -un: {result.stderr.strip()}")


@check("users", "helper")
async def check_nonexistent_user_is_told(ctx: Context) -> None:
    """An unknown user is a ConfigError that names it, before anything runs."""
    with raises(ConfigError, about="no-such-user"):
        await ctx.applet("write", f"{ctx.slot.tmp}/ran", user="no-such-user", stdin=b"")
    that(not await ctx.slot.files.exists(f"{ctx.slot.tmp}/ran"), "the command ran")


@check("users", "helper", "procfs")
async def check_no_capabilities_beyond_the_sandbox(ctx: Context) -> None:
    """A slot without a whole sandbox and a root of its own leaves uid 0, holds no capability and cannot gain any."""
    if ctx.slot.isolation.level == "exclusive" or ctx.facts.own_root:
        raise NotGiven("the slot may be root: it has the whole sandbox or its own root")
    lines = dict(
        line.split() for line in (await ctx.applet("status", "CapEff", "CapPrm", "NoNewPrivs")).stdout.splitlines()
    )
    equal(lines.get("CapEff:", "").strip("0"), "", "effective capabilities")
    that(ctx.slot.isolation.level == "none" or lines.get("NoNewPrivs:") == "1", f"no_new_privs: {lines}")
