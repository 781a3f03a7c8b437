"""The test images as directories, for Apptainer: `python -m tests.images.directories [NAME…]`. Made once, into
`.cache`.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.images import busybox, debian
from tests.images.build import RECIPES, ImageBuildError, tag

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "images"
DEFINITION = """Bootstrap: localimage
From: {root}

%environment
    export {environment}
"""
FINISH = ("apptainer", "exec", "--writable", "--containall", "--no-home", "--no-privs", "--add-caps", "CAP_CHOWN")
"""How the recipe's last command is run: a definition's own would need all capabilities of the machine's root."""


def ensure(name: str) -> Path:
    """The directory of an image, made if it is not there.

    Raises:
        ImageBuildError: it cannot be made here.
    """
    path = CACHE / tag(name).rpartition("/")[2].replace(":", "-")
    if path.exists():  # also one of another user
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(prefix="hermes-exec-image-") as scratch:
                make(name, Path(scratch), path)
    return path


def make(name: str, scratch: Path, path: Path) -> None:
    """Unpack the recipe's archive, and have the engine build a directory of it and run the recipe's last command."""
    recipe = RECIPES[name]
    root, below = scratch / "root", scratch / "scratch"
    root.mkdir()
    below.mkdir()
    part = path.with_name(f"{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    environment = next(change.removeprefix("ENV ") for change in recipe.changes if change.startswith("ENV "))
    definition = DEFINITION.format(root=root, environment=environment)
    (scratch / "definition").write_text(definition)
    try:
        recipe.write(scratch / "rootfs.tar", below)
        subprocess.run(["tar", "-xpf", scratch / "rootfs.tar", "-C", root], check=True, capture_output=True)
        command = ["apptainer", "build", "--sandbox", str(part), str(scratch / "definition")]
        subprocess.run(command, check=True, capture_output=True, text=True)
        if recipe.finish:
            command = [*FINISH, str(part), "/bin/sh", "-ec", recipe.finish]
            subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise ImageBuildError(f"{name}: {error}: {str(error.stderr)[-500:]}") from error
    except (debian.DebianUnavailable, busybox.BusyboxUnavailable, OSError) as error:
        raise ImageBuildError(f"{name}: {error}") from error
    part.rename(path)


def main() -> int:
    """Make those that are named, or all."""
    for name in sys.argv[1:] or RECIPES:
        print(f"directory {ensure(name)} ready", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
