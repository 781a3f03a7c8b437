"""The whole suite runs on local; with `--whole` everywhere, else a quarter of it on Docker and an eighth on SSH,
Apptainer, Nomad and Modal's client, and on further kinds of sandboxes an eighth of what may differ there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_exec.testing.conformance import all_checks
from tests.support.sample import rank

HERE = Path(__file__).parent
GROUPS = {check.name: check.group for check in all_checks()}
RIGHTS = {"users", "files", "isolation", "kill", "network"}
CONTAINER = {"as a container", "users", "kill"}
ALL = set(GROUPS.values())
DIFFERS = {
    "test_docker_busybox.py": {"commands", "environment", "background", "search", "pty", "sessions", "stdin"},
    "test_docker_debian.py": ALL,
    "test_docker_distroless.py": {"commands", "files", "trees", "timeouts", "bad input"},
    "test_docker_own_root.py": CONTAINER | {"isolation", "environment", "reset", "cwd", "network", "checkpoints"},
    "test_docker_read_only.py": {"cwd", "files", "reset", "search"},
    "test_docker_shared.py": {"checkpoints"},
    "test_docker_user.py": RIGHTS | {"environment"},
    "test_local_none.py": RIGHTS | {"environment", "trees", "timeouts", "reset", "checkpoints"},
    "test_local_uid.py": RIGHTS | {"environment", "trees", "timeouts", "reset", "checkpoints"},
    "test_local_user.py": RIGHTS | {"environment", "trees", "timeouts", "reset", "checkpoints"},
    "test_modal.py": ALL,
    "test_modal_whole.py": {"users", "kill", "isolation", "network"},
    "test_nomad.py": {"users", "kill", "faults", "isolation", "network"},
    "test_nomad_apptainer.py": CONTAINER | {"faults", "checkpoints"},
    "test_nomad_slots.py": ALL,
    "test_singularity.py": ALL,
    "test_singularity_own_root.py": CONTAINER | {"environment", "reset", "checkpoints"},
    "test_singularity_user.py": RIGHTS | {"cwd", "environment"},
    "test_ssh.py": ALL,
    "test_ssh_paramiko.py": {"commands", "trees", "stdin", "output", "faults", "network"},
    "test_ssh_user.py": RIGHTS | {"checkpoints"},
}
"""Groups of checks by the module of a kind of sandbox; a module that is not named runs all of them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only a whole run has."""
    for item in items:
        here = DIFFERS.get(item.path.name)
        if here is None or item.path.parent != HERE or not isinstance(item, pytest.Function):
            continue
        differs = GROUPS[str(item.callspec.params["conformance_check"])] in here
        if not differs or rank(item.nodeid) % (4 if item.path.name == "test_docker_debian.py" else 8):
            item.add_marker(pytest.mark.whole)
