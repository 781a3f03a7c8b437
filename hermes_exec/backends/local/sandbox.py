"""One sandbox on this host."""

from __future__ import annotations

from hermes_exec.backends.child_sandbox import ChildSandbox
from hermes_exec.backends.local.cgroups import remove_groups


class LocalSandbox(ChildSandbox):
    """See `Sandbox`. Its runner works on this host itself."""

    def _remove(self) -> None:
        remove_groups(self._directory)
        super()._remove()
