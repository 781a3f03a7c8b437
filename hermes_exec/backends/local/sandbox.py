"""One box on this host."""

from __future__ import annotations

from hermes_exec.backends.box_directory import remove_groups
from hermes_exec.backends.child_box import ChildBox


class LocalSandbox(ChildBox):
    """See ``Sandbox``. Its runner works on this host itself."""

    def _remove(self) -> None:
        remove_groups(self._directory)
        super()._remove()
