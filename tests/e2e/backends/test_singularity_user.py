"""Sandboxes of Apptainer of an ordinary user: files of images, what is kept where, limits, and root for the look
of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.ordinary_user import account, run_as_ordinary_user

pytestmark = [pytest.mark.singularity]


MODULE = "tests.e2e.backends.singularity_as_user"


@pytest.fixture
def image_file(singularity_image: Callable[[str], str]) -> Iterator[str]:
    """The file of an image that every user can read."""
    with tempfile.TemporaryDirectory(prefix="hermes-images-", dir="/tmp") as directory:  # pytest's are closed
        Path(directory).chmod(0o755)
        command = ["apptainer", "build", f"{directory}/image.sif", singularity_image("busybox")]
        subprocess.run(command, check=True, capture_output=True)
        yield f"{directory}/image.sif"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
def test_fakeroot_without_subordinate_ids_changes_owners(image_file: str) -> None:
    with account() as user:
        every = f"0-{2**32 - 2}"
        subprocess.run(["usermod", "--del-subuids", every, "--del-subgids", every, user], check=True)
        answers = json.loads(run_as_ordinary_user(MODULE, image_file, "owners", user=user))
    if "ImageError" in answers[0]:
        pytest.skip("an ordinary user cannot mount images here")
    assert answers == ['0\nAPT::Sandbox::User "root";\n'] * 2


@pytest.mark.whole
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
def test_an_ordinary_user(image_file: str) -> None:
    with account() as user:
        answers = json.loads(run_as_ordinary_user(MODULE, image_file, user=user))
    if answers["file"].startswith("ImageError"):
        assert "give access to /dev/fuse" in answers["file"]
        pytest.skip("an ordinary user cannot mount images here")
    mine = f"{answers['file'].splitlines()[0]}\n"
    assert mine != "0\n"
    assert "83886080\n" in answers["file"]
    assert answers["memory"].startswith(mine)
    assert "83886080\n" not in answers["memory"]
    assert "No space left on device" in answers["full memory"]
    assert "`sessiondir max size`" in answers["full memory"]
    if not answers["limits"].startswith(mine):
        assert answers["limits"].startswith("ConfigError: limits of a sandbox cannot be set by this user here")
    assert answers["best effort"].startswith(mine)
    assert answers["fakeroot"].startswith("0\n")
    assert answers["users"] in ("5:5\n", ""), "further users are given by /etc/subuid, if at all"
    assert answers["neighbours"] == []
    assert answers["left"] == []
