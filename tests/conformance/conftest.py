"""The whole suite runs on one kind of box of each engine; on the others the behaviours that may differ there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_exec.testing.conformance import all_checks

HERE = Path(__file__).parent
GROUPS = {check.name: check.group for check in all_checks()}
RIGHTS = {"environment", "users", "files", "trees", "isolation", "background", "timeouts", "kill", "reset", "faults"}
FOLDERS = {"cwd", "environment", "files", "trees", "reset"}
COMMANDS = {"commands", "environment", "users", "background", "timeouts", "reset"}
DIFFERS = {
    "test_docker_busybox.py": COMMANDS | {"cwd", "pty", "sessions", "stdin", "output"},
    "test_docker_distroless.py": COMMANDS | FOLDERS | {"bad input", "kill"},
    "test_docker_own_root.py": RIGHTS | COMMANDS | FOLDERS | {"as a container", "network"},
    "test_docker_read_only.py": FOLDERS | {"search", "output", "faults", "isolation"},
    "test_docker_user.py": RIGHTS,
    "test_local_none.py": RIGHTS | {"network"},
    "test_local_uid.py": RIGHTS | {"network"},
    "test_local_user.py": RIGHTS | {"network"},
    "test_modal_whole.py": COMMANDS | {"kill", "isolation", "network"},
    "test_nomad.py": {"commands", "users", "kill", "reset", "faults", "isolation", "network"},
    "test_nomad_apptainer.py": COMMANDS | {"as a container", "reset", "kill", "faults"},
    "test_singularity_own_root.py": COMMANDS | {"as a container", "reset", "kill"},
    "test_singularity_user.py": RIGHTS | FOLDERS,
    "test_ssh_paramiko.py": COMMANDS | FOLDERS | {"stdin", "output", "faults", "network"},
    "test_ssh_user.py": RIGHTS | {"network"},
}
"""Groups of checks by the module of a kind of box; a module that is not named runs all of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only a whole run has."""
    for item in items:
        here = DIFFERS.get(item.path.name)
        if here is None or item.path.parent != HERE or not isinstance(item, pytest.Function):
            continue
        if GROUPS[str(item.callspec.params["conformance_check"])] not in here:
            item.add_marker(pytest.mark.whole)
