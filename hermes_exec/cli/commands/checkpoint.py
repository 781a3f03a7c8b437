"""`hermes-exec checkpoint`: makes, describes and exports files of checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_exec.cli.kit import exits
from hermes_exec.cli.kit.interrupt import run_async
from hermes_exec.cli.kit.output import emit_json, printable, say
from hermes_exec.cli.kit.pools import AsJson, Backend, Config, Image, Options, Profile, has_images, pool_of, settings_of

if TYPE_CHECKING:
    from hermes_exec.archives.checkpoint_file import CheckpointReader
    from hermes_exec.pool.pool import SandboxPool
    from hermes_exec.slot.checkpoint import Holds

File = Annotated[Path, typer.Argument(metavar="FILE", help="File of a checkpoint.")]


def save(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, such as prepared.hxcp.")],
    command: Annotated[
        list[str],
        typer.Argument(metavar="CMD", help="One word is a shell script, several are a program and its arguments."),
    ],
    backend: Backend = None,
    image: Image = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Seconds after which the command is ended.")
    ] = 3600.0,
    on_fork: Annotated[
        list[str] | None,
        typer.Option("--on-fork", metavar="CMD", help="Shell command that starts a service in each fork. Repeatable."),
    ] = None,
    config: Config = None,
    profile: Profile = None,
    option: Options = None,
) -> None:
    """Run a command that prepares a slot, and save the slot's changes.

    Of slots without a root of their own, as on local and ssh, these are workspace, home and temporary directories only.

    Exit codes: that of the command if it is not 0; then nothing is saved. Otherwise as all commands.
    """
    from hermes_exec.archives.checkpoint_file import validate_target

    validate_target(file)
    settings = settings_of(backend, image, config, option, profile)
    if has_images(settings):
        settings = {"slot_root": "own", **settings}
    holds: Holds = "root" if settings.get("slot_root") == "own" else "directories"
    script: str | list[str] = command[0] if len(command) == 1 else command
    raise typer.Exit(run_async(lambda: _save(pool_of(settings), file, script, timeout_s, holds, on_fork)))


async def _save(
    pool: SandboxPool,
    file: Path,
    script: str | list[str],
    timeout_s: float,
    holds: Holds,
    on_fork: list[str] | None,
) -> int:
    async with pool, pool.slot() as slot:
        result = await slot.run(script, timeout_s=timeout_s, on_output=_pass_on)
        if not result.ok:
            why = f"timed out after {result.duration_s:.1f} s" if result.timed_out else result.reason
            say(f"nothing is saved, because the command failed{f': {why}' if why else ''}")
            return result.exit_code or exits.TIMED_OUT
        async with await slot.checkpoint(processes="end", holds=holds, on_fork=on_fork) as checkpoint:
            await checkpoint.save(file)
            for line in checkpoint.left_out:
                say(f"left out: {line}")
    return 0


def _pass_on(_: str, data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.flush()


def show(file: File, as_json: AsJson = False) -> None:
    """Print what a file of a checkpoint holds."""
    from hermes_exec.archives.checkpoint_file import CheckpointReader

    with CheckpointReader(file) as reader:
        facts = _describe(reader)
    if as_json:
        emit_json(facts)
        return
    for name, value in facts.items():
        lines = value if isinstance(value, list) else [value]
        for number, line in enumerate(lines or ["-"]):
            typer.echo(f"{name if number == 0 else '':<10}{printable(str(line)) or '-'}")


def _describe(reader: CheckpointReader) -> dict[str, object]:
    facts = reader.facts
    layers = []
    for number, directories in enumerate(facts.layers):
        size = sum(part.size for part in reader.parts if part.layer == number)
        layers.append(f"{size:,} bytes in {', '.join(directories) or 'no directory'}")
    return {
        "image": facts.image,
        "image_id": facts.image_id,
        "holds": facts.holds,
        "workdir": facts.workdir,
        "sessions": [f"{each['id']} in {each['state'].get('cwd')}" for each in facts.sessions.values()],
        "on_fork": list(facts.on_fork),
        "left_out": list(facts.left_out),
        "layers": layers,
    }


def export(
    file: File,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A new file NAME.tar, or a new directory.")],
    base: Annotated[
        Path, typer.Option("--base", metavar="IMAGE", help="The image: a tar of `docker save`, or an OCI layout.")
    ],
    as_json: AsJson = False,
) -> None:
    """Write an OCI image of the base image and the layers of a checkpoint. Prints what an image cannot hold."""
    from hermes_exec.archives.oci import export_image

    left_out = export_image(file, target, base)
    if as_json:
        emit_json({"left_out": list(left_out)})
    for line in () if as_json else left_out:
        say(f"left out: {line}")


def add_to(app: typer.Typer) -> None:
    """Add the commands `checkpoint save`, `checkpoint show` and `checkpoint export`."""
    checkpoint = typer.Typer(no_args_is_help=True, help="Files of checkpoints.")
    checkpoint.command(
        epilog="Example: hermes-exec checkpoint save prepared.hxcp -b docker -i python:3.12 -- pip install numpy",
    )(save)
    checkpoint.command(epilog="Example: hermes-exec checkpoint show prepared.hxcp")(show)
    checkpoint.command(
        epilog="Example: hermes-exec checkpoint export prepared.hxcp prepared.tar --base python.tar",
    )(export)
    app.add_typer(checkpoint, name="checkpoint")
