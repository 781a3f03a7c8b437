"""Arguments of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")]
