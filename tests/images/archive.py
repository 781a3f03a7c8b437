"""Images as archives in the format of `docker save`, without Docker."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

from hermes_exec.backends.runner_binary import ARCHITECTURES


def docker_archive(path: Path, layer: Path, *, arch: str | None = None, env: tuple[str, ...] = ()) -> Path:
    """Write an image of one layer, which is a tar archive of its root."""
    data = layer.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    config = {
        "architecture": arch or ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": list(env), "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["test/image:latest"], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as out:
        for name, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", data),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))
    return path
