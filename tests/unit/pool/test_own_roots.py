"""Roots of slots' own where an engine refuses them: demanded, that is an error with what to set, else they are done
without.
"""

from __future__ import annotations

import pytest

from hermes_exec.backends.base import NoOwnRoot
from hermes_exec.backends.docker.config import DockerConfig
from hermes_exec.backends.docker.container import check_own_roots
from hermes_exec.pool.template import OwnRoots

APPARMOR = ["name=apparmor", "name=seccomp,profile=default"]


def test_the_profile_of_apparmor_is_told_with_what_to_set() -> None:
    with pytest.raises(NoOwnRoot, match=r"security_opt=\('apparmor=unconfined',\)"):
        check_own_roots(DockerConfig(), APPARMOR)


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        (DockerConfig(), ["name=seccomp,profile=default"]),
        (DockerConfig(), []),
        (DockerConfig(security_opt=("apparmor=unconfined",)), APPARMOR),
        (DockerConfig(security_opt=("apparmor:mine",)), APPARMOR),
        (DockerConfig(privileged=True), APPARMOR),
    ],
)
def test_nothing_is_refused_where_it_may_work(config: DockerConfig, engine: list[str]) -> None:
    check_own_roots(config, engine)


def test_what_was_not_demanded_is_done_without() -> None:
    roots = OwnRoots(wanted=True, demanded=False)
    roots.refuse(NoOwnRoot("because"))
    assert (roots.enabled, roots.refused) == (False, "because")
    with pytest.raises(NoOwnRoot, match="because"):
        OwnRoots(wanted=True, demanded=True).refuse(NoOwnRoot("because"))
