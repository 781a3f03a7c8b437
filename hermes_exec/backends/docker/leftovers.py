"""Removal of containers and their volumes, also of trees that the engine cannot remove.

The engine holds a descriptor open for each level of a tree, so it never removes a tree with more levels than it has
descriptors. The runner removes such trees before its container ends. After a killed runner, another container with the
runner's program does it. If that fails, the container stays: it reminds every driver of this engine not to try again,
because a volume that a container refers to is not dangling.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hermes_exec.backends.capabilities import advice
from hermes_exec.backends.docker.container import NAME_LABEL
from hermes_exec.backends.docker.trial_image import make_image, remove_image
from hermes_exec.backends.owner import PREFIX

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)
STOP_TIMEOUT_S = 15
"""Longest wait for a runner that removes leftovers of its slots."""
WIPE_TIMEOUT_S = 60
"""Longest wait for the removal of a killed runner's leftovers."""
WIPE_LABEL = f"{PREFIX}wipe"
TARGET = "/left"
REFUSED = "the engine refuses although it is empty"
REMOVED_BY_OTHERS = 409
GONE = (404, REMOVED_BY_OTHERS)
"""Statuses of objects that are gone, being removed, or used by others."""


def remove(client: DockerClient, container: str, name: str | None = None) -> None:
    """Stop a container and remove it with its anonymous volumes. One that is gone is fine; one that another request
    removes is waited for.

    If another program removed it, its state volume may be left: it is found by the container's name.
    """
    from docker.errors import APIError

    with contextlib.suppress(APIError):
        client.api.stop(container, timeout=max(0, min(STOP_TIMEOUT_S, int(client.api.timeout / 2))))
    ended_in_order = False
    try:
        attributes: Mapping[str, Any] = client.api.inspect_container(container)
        name, ended_in_order = str(attributes["Name"]).removeprefix("/"), attributes["State"]["ExitCode"] == 0
        _remove_container(client, container, attributes)
    except APIError as error:
        if error.status_code not in GONE:
            raise
    if name is not None and not ended_in_order:
        remove_volumes(client, {"label": f"{NAME_LABEL}={name}"}, lambda _: True)


def _remove_container(client: DockerClient, container: str, attributes: Mapping[str, Any]) -> None:
    from docker.errors import APIError
    from requests import RequestException

    def end() -> None:
        try:
            client.api.remove_container(container, force=True, v=True)
        except APIError as error:
            if error.status_code == REMOVED_BY_OTHERS:
                with contextlib.suppress(APIError, RequestException):
                    client.api.wait(container, condition="removed", timeout=client.api.timeout)
            raise

    layer = ((attributes.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir")
    if layer is None:
        end()
    else:
        mount = {"Type": "bind", "Source": layer, "Target": TARGET}
        _remove_or_wipe(client, f"container-{container}", mount, end)


def remove_volumes(
    client: DockerClient, filters: dict[str, str], chosen: Callable[[Mapping[str, str]], object]
) -> None:
    """Remove the volumes whose labels `chosen` accepts. A volume in use stays."""
    for volume in client.api.volumes(filters=filters)["Volumes"] or ():
        if chosen(volume.get("Labels") or {}):
            _remove_volume(client, volume["Name"])


def _remove_volume(client: DockerClient, name: str) -> None:
    mount = {"Type": "volume", "Source": name, "Target": TARGET}
    _remove_or_wipe(client, f"volume-{name}", mount, lambda: client.api.remove_volume(name))


def _remove_or_wipe(client: DockerClient, name: str, mount: dict[str, Any], end: Callable[[], object]) -> None:
    """Remove something by `end`. If the engine cannot, remove its content with the runner's program first."""
    failure = _failure(end)
    if failure is not None and _wipe(client, name, mount):
        failure = _failure(end)
        if failure is not None:
            _create(client, name, mount)
    if failure is not None:
        logger.warning("%s: %s", advice_on(name), failure)


def _failure(end: Callable[[], object]) -> str | None:
    """Return why the engine could not remove something; None if it did, or others do."""
    from docker.errors import APIError

    try:
        end()
    except APIError as error:
        return None if error.status_code in GONE else str(error.explanation)
    return None


def _wipe(client: DockerClient, name: str, mount: dict[str, Any]) -> bool:
    """Remove the content of a mount in a container for it, which stays on failure."""
    from docker.errors import APIError
    from requests import RequestException

    try:
        container = _create(client, name, mount)
        client.api.start(container)
        if client.api.wait(container, timeout=int(min(WIPE_TIMEOUT_S, client.api.timeout)))["StatusCode"] == 0:
            client.api.remove_container(container)
            return True
    except (APIError, RequestException) as error:
        logger.debug("%s is not wiped: %s", name, error)
    return False


def _create(client: DockerClient, name: str, mount: dict[str, Any]) -> str:
    """Create the container that wipes something. Its name makes the engine refuse a second one at the same time."""
    image = make_image(client)
    try:
        host = client.api.create_host_config(
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=["DAC_OVERRIDE", "FOWNER"],
            security_opt=["no-new-privileges"],
            read_only=True,
        )
        container: Mapping[str, Any] = client.api.create_container(
            image=image,
            command=["/runner", "wipe", TARGET],
            name=f"hermes-exec-wipe-{name}",
            labels={WIPE_LABEL: name},
            user="0:0",
            host_config={**host, "Mounts": [mount]},
        )
        return str(container["Id"])
    finally:
        remove_image(client, image)


def find_leftovers(client: DockerClient, *, retry: bool) -> dict[str, str]:
    """Return failed removals and their reasons, and remove containers of finished wipes.

    With `retry`, containers of failed wipes are removed too, so that the engine is asked again.
    """
    from docker.errors import APIError

    leftovers: dict[str, str] = {}
    containers: list[Mapping[str, Any]] = client.api.containers(all=True, filters={"label": WIPE_LABEL})
    for each in containers:
        name = str(each["Labels"][WIPE_LABEL])
        with contextlib.suppress(APIError):
            state: Mapping[str, Any] = client.api.inspect_container(each["Id"])["State"]
            wiped = state["Status"] == "exited" and state["ExitCode"] == 0
            if state["Status"] != "running" and (wiped or retry):
                client.api.remove_container(each["Id"])
            else:
                leftovers[name] = client.api.logs(each["Id"], tail=1).decode("utf-8", "replace").strip() or REFUSED
    return leftovers


def advice_on(what: str) -> str:
    """Return the remedy for a failed removal."""
    kind, _, name = what.partition("-")
    return advice("docker", f"the {kind} {name[:24]}")
