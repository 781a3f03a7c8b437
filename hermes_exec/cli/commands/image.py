"""`hermes-exec image`: recipes of images for tools that need more than a shell."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

BASE = "debian:bookworm-slim"
PACKAGES = "chromium fonts-liberation ca-certificates python3"
INSTALL = f"apt-get update && apt-get install -y --no-install-recommends {PACKAGES} && rm -rf /var/lib/apt/lists/*"
RECIPES = {
    "dockerfile": "# docker build -t browser - < Dockerfile\nFROM {base}\nRUN {install}\n",
    "apptainer": "# apptainer build browser.sif browser.def\nBootstrap: docker\nFrom: {base}\n\n%post\n    {install}\n",
}


def image(
    name: Annotated[Literal["browser"], typer.Argument(help="Purpose of the image.")],
    form: Annotated[
        Literal["dockerfile", "apptainer"], typer.Option("--format", "-f", help="A Dockerfile or a definition.")
    ] = "dockerfile",
    base: Annotated[str, typer.Option("--from", help="The image to build on, with apt-get.")] = BASE,
) -> None:
    """Print the recipe of an image whose slots have a browser."""
    typer.echo(RECIPES[form].format(base=base, install=INSTALL), nl=False)


def add_to(app: typer.Typer) -> None:
    """Add the command `image`."""
    app.command(epilog="Example: hermes-exec image browser | docker build -t browser -")(image)
