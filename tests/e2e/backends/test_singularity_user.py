"""Sandboxes of Apptainer of an ordinary user: files of images, what is kept where, limits, and root for the look
of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
        root = Path(directory, "root")
        shutil.copytree(singularity_image("busybox"), root, symlinks=True)
        for name in ("usr/local", "usr/tree/below", "opt", "of5", "root"):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in ("etc/settings", "opt/file", "usr/tree/below/file"):
            (root / name).write_text("of the image\n")
        if os.geteuid() == 0:
            os.chown(root / "of5", 5, 5)
        command = ["apptainer", "build", f"{directory}/image.sif", str(root)]
        subprocess.run(command, check=True, capture_output=True)
        yield f"{directory}/image.sif"


@contextmanager
def account_without_subordinate_ids() -> Iterator[str]:
    with account() as user:
        every = f"0-{2**32 - 2}"
        subprocess.run(["usermod", "--del-subuids", every, "--del-subgids", every, user], check=True)
        yield user


@contextmanager
def unpacked(image_file: str, user: str) -> Iterator[str]:
    """The image as a directory that the user has unpacked."""
    directory = Path(image_file).with_name("unpacked")
    shutil.copytree(Path(image_file).with_name("root"), directory, symlinks=True)
    subprocess.run(["chown", "-R", "--no-dereference", f"{user}:", directory], check=True)
    try:
        yield str(directory)
    finally:
        shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
@pytest.mark.parametrize("user_account", [account, account_without_subordinate_ids])
def test_directory_and_file_of_an_image_allow_the_same_writes(
    image_file: str, user_account: Callable[[], AbstractContextManager[str]]
) -> None:
    with user_account() as user, unpacked(image_file, user) as directory:
        of_file, of_directory = json.loads(run_as_ordinary_user(MODULE, image_file, directory, user=user))
    everything = "/ /etc /usr /usr/local /opt /root /of5 append move remove chmod "
    assert of_file == of_directory
    assert of_file == {
        "one": f"exclusive: {everything}",
        "shared": "namespaces: ",
        "fakeroot one": f"exclusive: {everything}",
        "fakeroot shared": "namespaces: ",
        "fakeroot own": f"namespaces: {everything}",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
def test_fakeroot_without_subordinate_ids_gives_several_slots_own_roots(image_file: str) -> None:
    with account_without_subordinate_ids() as user:
        answers = json.loads(run_as_ordinary_user(MODULE, image_file, "one id", user=user))
    assert answers["said"] == "root\nuid=7(me) gid=7 groups=7\n" + 'APT::Sandbox::User "root";\n'
    assert answers["neighbour"] == "file\n0\n"
    assert answers["alone"] == "1\nalive\n"
    assert "no user but root exists" in answers["other"] or "cannot become" in answers["other"]
    assert answers["after"] == "file\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
def test_fakeroot_without_subordinate_ids_changes_owners(image_file: str) -> None:
    with account_without_subordinate_ids() as user:
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
