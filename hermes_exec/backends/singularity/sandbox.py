"""One container of the engine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from hermes_exec.backends.base import OWN_EXIT_CODES
from hermes_exec.backends.child_sandbox import ChildSandbox
from hermes_exec.backends.sandbox_directory import SandboxDirectory
from hermes_exec.errors import PostMortem, Suspect


def base_of(directory: SandboxDirectory) -> Path:
    """Return the `--base` of the runner, as a path of this host."""
    return directory.path / "state" / "base"


class SingularitySandbox(ChildSandbox):
    """See `Sandbox`, `HasRoomHint` and `HasImageID`.

    Its streams bypass the engine: they lead to a socket in its directory.
    """

    workdir = "/"

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        pid: int,
        directory: SandboxDirectory,
        program: Path,
        limits: Mapping[str, str],
        remove: Callable[[SandboxDirectory], None],
        *,
        exclusive: bool,
        room_hint: str,
        image_id: str,
    ) -> None:
        self._exclusive = exclusive
        self.room_hint = room_hint
        self.image_id = image_id
        self._remove_directory = remove
        super().__init__(directory.path.name, process, pid, directory, program, base_of(directory), limits)

    def _remove(self) -> None:
        self._remove_directory(self._directory)

    def _post_mortem(self) -> PostMortem:
        code = self._process.returncode
        # Nothing in the sandbox can kill its process 1, but it may have used up the memory.
        by_force = code in {137, -9}
        suspect: Suspect = "outside" if by_force and "memory_mb" not in self.limits else "unknown"
        if self._exclusive and code > 0 and not by_force and code not in OWN_EXIT_CODES:
            suspect = "tenant"
        reason = f"the sandbox ended with exit code {code}" if code >= 0 else f"the engine was ended by signal {-code}"
        return PostMortem(reason, exit_code=code, log_tail=self._directory.log_tail(), suspect=suspect)
