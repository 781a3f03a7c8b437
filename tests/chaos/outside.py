"""What is left of a run when it is over, looked at from outside the product."""

from __future__ import annotations

from docker import DockerClient

NOTHING = "nothing"


def containers_of(client: DockerClient, run_id: str) -> dict[str, str]:
    """The containers of a run, and the state of each."""
    found = client.api.containers(all=True, filters={"label": f"hermes-exec.run-id={run_id}"})
    return {each["Id"]: each["State"] for each in found}


def left_in_docker(client: DockerClient, run_id: str) -> str:
    """What is left of a run, in words."""
    states = sorted(containers_of(client, run_id).values())
    return ", ".join(f"a container ({state})" for state in states) or NOTHING
