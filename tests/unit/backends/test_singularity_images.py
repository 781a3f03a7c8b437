"""Images of Apptainer without the engine: what identifies an image, and when its file can be mounted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hermes_exec import ImageError
from hermes_exec.backends.registry import make_backend
from hermes_exec.backends.singularity import engine as engine_module
from hermes_exec.backends.singularity.config import SingularityConfig
from hermes_exec.backends.singularity.engine import SingularityEngine, engine_environment, mount_obstacle
from hermes_exec.backends.singularity.sources import ImageSource, find_image, is_foreign_directory
from hermes_exec.backends.singularity.squashfuse import gives_owners, write_wrapper


def content_of(name: str) -> str:
    source = find_image(name, mounts_files=True)
    assert isinstance(source, ImageSource)
    assert source.argument == name
    return source.content


def write_index(directory: Path, digest: str) -> None:
    directory.mkdir(exist_ok=True)
    manifest = {"digest": f"sha256:{digest}", "annotations": {"org.opencontainers.image.ref.name": "latest"}}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))


def test_oci_directory_is_identified_by_its_content(tmp_path: Path) -> None:
    write_index(tmp_path / "image", "a" * 64)
    write_index(tmp_path / "copy", "a" * 64)
    first = content_of(f"oci:{tmp_path}/image")
    assert content_of(f"oci:{tmp_path}/copy") == first
    assert content_of(f"oci:{tmp_path}/image:latest") != first
    write_index(tmp_path / "image", "b" * 64)
    assert content_of(f"oci:{tmp_path}/image") != first
    with pytest.raises(ImageError, match=r"no index\.json"):
        find_image(f"oci:{tmp_path}/none", mounts_files=True)


def make_program(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SingularityEngine:
    """An Apptainer of an ordinary user with access to `/dev/fuse`, on a host without squashfuse."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(engine_module, "SYSTEM_PATH", str(tmp_path / "system"))
    monkeypatch.setenv("PATH", str(tmp_path / "mine"))
    script = f'[ "$1" = buildcfg ] && echo LIBEXECDIR={tmp_path}/libexec || echo "apptainer version 1.4.5"'
    return SingularityEngine(make_program(tmp_path / "apptainer", script), "apptainer", (1, 4))


@pytest.mark.parametrize("place", ["mine/squashfuse", "system/squashfuse_ll", "libexec/apptainer/bin/squashfuse_ll"])
def test_image_file_is_mounted_where_squashfuse_is(place: str, apptainer: SingularityEngine, tmp_path: Path) -> None:
    make_program(tmp_path / place, "exit 0")
    assert mount_obstacle(apptainer) == ""


@pytest.mark.anyio
async def test_doctor_reports_missing_squashfuse(apptainer: SingularityEngine) -> None:
    assert mount_obstacle(apptainer) == "no squashfuse"
    assert mount_obstacle(apptainer._replace(family="singularity-ce")) == ""
    backend = make_backend("singularity", {"binary": apptainer.path})
    (remark,) = await backend.remarks()  # type: ignore[attr-defined]
    assert remark.startswith("no squashfuse: ")
    assert "install squashfuse" in remark


def test_image_file_is_unpacked_without_squashfuse(apptainer: SingularityEngine, tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(b"image")
    source = find_image(str(tmp_path / "image.sif"), mounts_files=not mount_obstacle(apptainer))
    assert isinstance(source, ImageSource)


def test_engine_finds_programs_libraries_and_room_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"PATH": "/opt/conda/bin", "LD_LIBRARY_PATH": "/opt/conda/lib", "APPTAINER_TMPDIR": "/scratch"}
    for name, value in (given | {"APPTAINER_BIND": "/secret", "HF_TOKEN": "hush"}).items():
        monkeypatch.setenv(name, value)
    env = engine_environment(SingularityConfig(), SingularityEngine("apptainer", "apptainer", (1, 4)))
    assert env["PATH"].startswith("/opt/conda/bin:/usr/local/sbin:")
    assert {name: env[name] for name in ("LD_LIBRARY_PATH", "APPTAINER_TMPDIR")} == {
        name: given[name] for name in ("LD_LIBRARY_PATH", "APPTAINER_TMPDIR")
    }
    assert env.keys().isdisjoint({"APPTAINER_BIND", "HF_TOKEN"})


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to give a directory away")
def test_directory_of_another_user_is_foreign(tmp_path: Path) -> None:
    assert not is_foreign_directory(str(tmp_path))
    assert not is_foreign_directory("docker://busybox")
    os.chown(tmp_path, 1, 1)
    assert is_foreign_directory(str(tmp_path))


def test_wrapper_of_squashfuse_offers_owners(tmp_path: Path) -> None:
    program = tmp_path / "squashfuse"
    program.write_text("#!/bin/sh\necho mounted $*\n")
    program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    assert not write_wrapper(str(tmp_path / "bin"), "/nowhere")
    assert write_wrapper(str(tmp_path / "bin"), str(tmp_path))
    wrapper = str(tmp_path / "bin" / "squashfuse_ll")
    assert gives_owners("/no/engine", str(tmp_path / "bin"))
    mounted = subprocess.run([wrapper, "-o", "uid=1"], capture_output=True, text=True, check=True, env={})
    assert mounted.stdout == "mounted -o uid=1\n"
