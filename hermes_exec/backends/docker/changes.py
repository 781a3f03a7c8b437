"""What a container has changed of its image: told by the engine, or seen in its layers where they are on this host."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_exec.backends.docker.container import HOME

if TYPE_CHECKING:
    from docker import DockerClient

OVERLAY = "trusted.overlay."
OPAQUE = f"{OVERLAY}opaque"
OURS = f"{HOME}/"


class Layers(NamedTuple):
    """The folders that overlayfs makes a container's files of; only ``upper`` is written to."""

    upper: Path
    lower: tuple[Path, ...]


def changes_of(client: DockerClient, container: str, layers: Layers | None) -> Iterator[str]:
    """What differs from the image, outside of this library's own directories: ``A``, ``C`` or ``D`` and a path.

    Without ``layers`` the engine compares all files of the image, which takes longer the more there are. In the layers
    a file counts as changed when it was written to, even with the same bytes.
    """
    found = _told(client, container) if layers is None else _seen(layers)
    return (f"{kind} {path}" for kind, path in found if not f"{path}/".startswith(OURS))


def _told(client: DockerClient, container: str) -> Iterator[tuple[str, str]]:
    told: Sequence[Mapping[str, Any]] = client.api.diff(container) or []
    return (("CAD"[item["Kind"]], str(item["Path"])) for item in told)


def layers_of(facts: Mapping[str, Any]) -> Layers | None:
    """The layers of an inspected container of this host's engine; None where it stores files in another way, or we may
    not read them.
    """
    driver: Mapping[str, Any] = facts.get("GraphDriver") or {}
    folders: Mapping[str, str] = driver.get("Data") or {}
    if driver.get("Name") != "overlay2" or not {"UpperDir", "LowerDir"} <= folders.keys():
        return None
    layers = Layers(Path(folders["UpperDir"]), tuple(map(Path, folders["LowerDir"].split(":"))))
    return layers if all(os.access(folder, os.R_OK | os.X_OK) for folder in (layers.upper, *layers.lower)) else None


def _seen(layers: Layers) -> Iterator[tuple[str, str]]:
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(f"{layers.upper}{folder}") as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if path == HOME:
                    continue
                facts = entry.stat(follow_symlinks=False)
                before = _below(layers, path)
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(path)
                    # overlayfs copies a folder up as soon as anything in it is written to.
                    if before is not None and _same(before, entry.path, facts):
                        continue
                if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
                    yield "D", path
                else:
                    yield "A" if before is None else "C", path


def _below(layers: Layers, path: str) -> str | None:
    """The path in the topmost layer of the image that has it; None if the image does not have it."""
    for layer in layers.lower:
        try:
            facts = os.lstat(f"{layer}{path}")
        except OSError:
            continue
        return None if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0 else f"{layer}{path}"
    return None


def _same(before: str, now: str, facts: os.stat_result) -> bool:
    """Whether a folder is as in the image, apart from its time and its entries."""
    if _rights(os.lstat(before)) != _rights(facts):
        return False
    attributes = _attributes(now)
    return attributes.pop(OPAQUE, b"") != b"y" and attributes == _attributes(before)


def _rights(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_mode, facts.st_uid, facts.st_gid


def _attributes(folder: str) -> dict[str, bytes]:
    """The extended attributes of a folder, ACLs included; of overlayfs's own ones only the opaque mark."""
    try:
        return {
            name: os.getxattr(folder, name, follow_symlinks=False)
            for name in os.listxattr(folder, follow_symlinks=False)
            if name == OPAQUE or not name.startswith(OVERLAY)
        }
    except OSError:
        return {}


def unseen_mounts(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Writable places of an inspected container that the comparison with the image leaves out: mounts in memory, and
    volumes of the image.

    Mounts of the configuration are not among them: those are shared on purpose.
    """
    host: Mapping[str, Any] = facts["HostConfig"]
    wanted = {bind.split(":")[1] for bind in host.get("Binds") or () if ":" in bind}
    volumes = {m["Destination"] for m in facts["Mounts"] if m["Type"] == "volume" and m["RW"]}
    ours = {path for path in volumes if path.startswith(OURS)}
    return tuple(sorted({*(host.get("Tmpfs") or {}), *(volumes - ours - wanted)}))
