"""`hermes-exec env swe-smith make` creates instances for the environment swe_smith_oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hermes_exec.cli.kit.interrupt import run_async

if TYPE_CHECKING:
    from rich.console import Console

    from hermes_atropos.envs.swe_smith_oracle.generator import MutantCounts
    from hermes_atropos.envs.swe_smith_oracle.instance import Instance

app = typer.Typer(add_completion=False, help="Tools for the environment swe_smith_oracle.")


@app.command("make")
def make(
    packages: Annotated[list[str], typer.Argument(metavar="NAME==VERSION …", help="Packages from the index.")],
    out: Annotated[Path, typer.Option(help="The JSONL file to write.")],
    count: Annotated[int, typer.Option(min=1, help="Instances for each package.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the random bugs.")] = 0,
    cache: Annotated[Path | None, typer.Option(help="Directory for downloads.")] = None,
    python: Annotated[str, typer.Option(help="Python in the slots.")] = "python3",
    backend: Annotated[str, typer.Option(help="Backend that runs the tests.")] = "local",
    image: Annotated[str | None, typer.Option(help="Image of the slots.")] = None,
    test_requirements: Annotated[
        str, typer.Option(help="Requirements of the tests, separated by semicolons.")
    ] = "pytest>=8,<10",
    test_arguments: Annotated[str, typer.Option(help="More pytest arguments, in shell syntax.")] = "",
) -> None:
    """Create bugs in packages, prove each bug with the package's tests, and write them as instances.

    Use the same Python and test options when you run the environment.
    """
    from rich.console import Console

    from hermes_atropos.envs.swe_smith_oracle.env import SweSmithOracleConfig
    from hermes_atropos.envs.swe_smith_oracle.generator import make_instances, write_instances
    from hermes_atropos.envs.swe_smith_oracle.instance import InstanceUnusable
    from hermes_exec import SandboxPool

    settings = SweSmithOracleConfig(
        repo_cache_dir="" if cache is None else str(cache),
        python=python,
        test_requirements=test_requirements,
        test_arguments=test_arguments,
    ).settings()
    console = Console(stderr=True)
    rows: list[Instance] = []
    failed = False

    async def work(report: Callable[[str, MutantCounts | None], None]) -> int:
        nonlocal failed
        async with SandboxPool(backend, image=image) as pool:
            for package in packages:
                report(package, None)
                try:
                    instances, counts = await make_instances(
                        pool,
                        package,
                        count=count,
                        seed=seed,
                        settings=settings,
                        on_progress=lambda counts: report(counts.package, counts),
                    )
                except InstanceUnusable as error:
                    console.print(f"{package}: {error}", style="red", markup=False, soft_wrap=True)
                    failed = True
                    continue
                rows.extend(instances)
                console.print(str(counts), markup=False, highlight=False, soft_wrap=True)
        return 0

    with _progress(console, count * len(packages)) as report:
        code = run_async(lambda: work(report))
    if code:
        raise typer.Exit(code)
    write_instances(out, rows)
    console.print(f"{len(rows)} instances in {out}", markup=False, soft_wrap=True)
    if failed or not rows:
        raise typer.Exit(1)


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str, MutantCounts | None], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=total)
        kept: dict[str, int] = {}

        def report(package: str, counts: MutantCounts | None) -> None:
            if counts is not None:
                kept[package] = counts.kept
            tried = "" if counts is None else f", {counts.tried} tried"
            progress.update(task, description=f"{package}{tried}", completed=sum(kept.values()))

        yield report
