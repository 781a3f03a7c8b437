"""The set-up of a group whose rollouts run in forks of one slot."""

from __future__ import annotations

import copy
import uuid
from dataclasses import dataclass, field
from typing import Any

from hermes_agent import SharedSetUp
from hermes_atropos.errors import EnvironmentMistake


@dataclass
class GroupSetUp:
    """The set-up of a group. `id` takes the place of a trajectory's id in it, and `meta` is its return value."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    meta: dict[str, Any] = field(default_factory=dict)
    shared: SharedSetUp = field(default_factory=lambda: SharedSetUp(required=True))

    def copy_meta(self) -> dict[str, Any]:
        """Return a copy of `meta` for one rollout.

        Raises:
            EnvironmentMistake: If a value cannot be copied.
        """
        try:
            return copy.deepcopy(self.meta)
        except Exception as error:
            raise EnvironmentMistake(
                f"setup_trajectory_workspace returned a value that cannot be copied for each rollout of its group: "
                f"{error} (--env.fork_groups true needs that)"
            ) from error
