"""The levels on which all attacks are fired, and how pools on them are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_exec import SandboxPool
from hermes_exec.config import Limits

# Small, so that what uses them up does no harm even where they do not hold.
SLOT = Limits(memory_mb=192, pids=64, cpus=0.5, open_files=256, file_size_mb=64)
# No cpus: slots have no part of them at `uid`, so that one slot would stop the others (docs/isolation.md).
SANDBOX = Limits(memory_mb=512, pids=256)
WHOLE_SANDBOX = SLOT.model_copy(update={"file_size_mb": None})


@dataclass(frozen=True)
class Level:
    """A column of the table."""

    id: str
    title: str
    level: str
    backend: str
    options: dict[str, Any]
    planted_at: str | None = None
    """Where slots see the directory of planted programs; None: at its own path."""
    ordinary_user: bool = False
    """Whether the driver is an ordinary user, also where the tests run as root."""

    @property
    def whole_image(self) -> bool:
        """Whether the image is the tenant's, with its root."""
        return self.level == "exclusive" or self.options.get("slot_root") == "own"

    def pool(self, planted: Path | None, image: Callable[[], str], **more: Any) -> SandboxPool:
        """A pool of this level; `planted` is a directory of programs that its slots may run."""
        options = {**self.options, "min_isolation": self.level, **more}
        if self.planted_at is not None:
            options["image"] = image()
            if planted is not None:
                options["volumes"] = (f"{planted}:{self.planted_at}:ro",)
        elif planted is not None:
            options["readonly_paths"] = (str(planted),)
        return SandboxPool(self.backend, **options)


LEVELS = {
    level.id: level
    for level in (
        Level(
            "namespaces",
            "`namespaces`, local, root",
            "namespaces",
            "local",
            {"slots_per_sandbox": 4, "slot_limits": SLOT},
        ),
        Level(
            "namespaces-user",
            "`namespaces`, local, ordinary user",
            "namespaces",
            "local",
            {"slots_per_sandbox": 4, "slot_limits": SLOT, "best_effort_limits": True},
            ordinary_user=True,
        ),
        Level(
            "uid",
            "`uid`, Docker, slots in one sandbox",
            "uid",
            "docker",
            {
                "slots_per_sandbox": 4,
                "max_sandboxes": 1,
                "slot_root": "shared",
                "slot_limits": SLOT,
                "limits": SANDBOX,
                "best_effort_limits": True,
            },
            planted_at="/planted",
        ),
        Level(
            "own",
            "root of its own, Docker",
            "namespaces",
            "docker",
            {
                "slots_per_sandbox": 4,
                "max_sandboxes": 1,
                "slot_root": "own",
                "slot_limits": SLOT,
                "limits": SANDBOX,
                "best_effort_limits": True,
            },
            planted_at="/planted",
        ),
        Level(
            "exclusive",
            "`exclusive`, Docker",
            "exclusive",
            "docker",
            {
                "slots_per_sandbox": 1,
                "max_sandboxes": 3,
                "limits": WHOLE_SANDBOX,
            },
            planted_at="/planted",
        ),
        Level(
            "apptainer",
            "`exclusive`, Apptainer, root",
            "exclusive",
            "singularity",
            {
                "slots_per_sandbox": 1,
                "max_sandboxes": 3,
                "limits": WHOLE_SANDBOX,
            },
            planted_at="/planted",
        ),
        Level(
            "apptainer-user",
            "`exclusive`, Apptainer, ordinary user",
            "exclusive",
            "singularity",
            {
                "slots_per_sandbox": 1,
                "max_sandboxes": 3,
                "limits": WHOLE_SANDBOX,
                "best_effort_limits": True,
            },
            planted_at="/planted",
            ordinary_user=True,
        ),
    )
}
