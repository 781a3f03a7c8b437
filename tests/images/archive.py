"""Images as archives in the format of `docker save`, and as directories in OCI's format, without Docker."""

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
    config = _config(data, arch, env)
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


def oci_directory(path: Path, layer: Path, *, env: tuple[str, ...] = ()) -> Path:
    """Write an image of one layer, which is a tar archive of its root, in place of the image in the directory."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    kind = "application/vnd.oci.image"

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"{kind}.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

    data = layer.read_bytes()
    config = blob(json.dumps(_config(data, None, env)).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": config, "layers": [blob(data, "layer.v1.tar")]}
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), "manifest.v1+json")]}
    (path / "index.json").write_text(json.dumps(index))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return path


def _config(layer: bytes, arch: str | None, env: tuple[str, ...]) -> dict[str, object]:
    return {
        "architecture": arch or ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": list(env), "Cmd": ["/bin/sh"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
