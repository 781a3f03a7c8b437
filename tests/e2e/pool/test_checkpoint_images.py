"""OCI images of checkpoints: a container of the image has the files of the slot."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_exec import ConfigError, SandboxPool, Slot
from tests.e2e.pool.test_checkpoint_transfer import CHANGE

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
Image = Callable[[str], str]
SPECIAL = "touch .wh.note; touch -d 1960-01-01 old; truncate -s 2G huge; mkdir -p '/opt/a b'; echo x > '/opt/a b/ü'"
DESCRIBE = (
    "cd /workspace; find /workspace /opt /etc /usr/share /var -xdev -not -path '/etc/host*' -not -path '/etc/resolv*' "
    "-not -path /etc -not -path /etc/mtab -not -name '.wh.*' -not -type s -not -name old -not -name huge "
    "-not -path /workspace -printf '%p %y %m %u %g %T@ %l\\n' | sort; stat -c %h note; sha256sum note other hole big"
)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


async def output(slot: Slot, command: str) -> str:
    result = await slot.run(command)
    assert result.ok, result
    return result.stdout


async def test_image_equals_the_slot(docker_image: Image, tmp_path: Path) -> None:
    image, base, target = docker_image("debian"), tmp_path / "base.tar", tmp_path / "image.tar"
    docker("save", image, "-o", str(base))
    (empty := tmp_path / "empty").mkdir()
    async with SandboxPool("docker", image=image, max_sandboxes=1, slots_per_sandbox=2) as pool, pool.slot() as slot:
        await output(slot, f"{CHANGE}; {SPECIAL}")
        await slot.checkpoint(processes="end")
        await output(slot, "rm /opt/x -r; mkdir /opt/x; mv d dd; rm -r /usr/share/man; mkdir /usr/share/man")
        checkpoint = await slot.checkpoint()
        await slot.restore(checkpoint)
        expected = await output(slot, DESCRIBE)
        left_out = await checkpoint.export_oci(target, base=base)
        assert sorted(os.listdir(tmp_path)) == ["base.tar", "empty", "image.tar"]
        with pytest.raises(FileExistsError):
            await checkpoint.export_oci(target, base=base)
        with pytest.raises(ConfigError, match="neither a tar of"):
            await checkpoint.export_oci(tmp_path / "other", base=empty)
    reports = "\n".join(left_out)
    for part in (
        "/workspace/.wh.note: ",
        "/workspace/old: its time",
        "/workspace/hole: ",
        "/workspace/huge: 2147483648",
    ):
        assert part in reports
    loaded = docker("load", "-i", str(target)).split()[-1]
    try:
        assert docker("run", "--rm", loaded, "sh", "-c", DESCRIBE).splitlines() == expected.splitlines()
        assert docker("run", "--rm", loaded, "sh", "-c", "pwd; ls huge .wh.note 2>/dev/null | wc -l").split() == [
            "/workspace",
            "0",
        ]
        assert json.loads(docker("image", "inspect", loaded))[0]["Architecture"]
    finally:
        docker("image", "rm", "-f", loaded)
