"""The registry of checks: public async functions, each with a name, a group, a meaning and needs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from hermes_exec import SandboxPool

PoolFactory = Callable[..., "SandboxPool"]
"""Called with keywords of `SandboxPool`, which override the factory's own."""
CheckFunction = Callable[[Any], Awaitable[None]]
"""Takes a `Context`. That class imports this module, so this type cannot name it."""

Need = Literal[
    "shell",  # a POSIX shell in the image
    "bash",
    "python",  # python3 in the image
    "helper",  # the applets can be executed in the slot
    "procfs",  # /proc in the sandbox
    "ordinary-user",  # the slot's user is not uid 0
    "root",  # run(user="root") is allowed
    "image-users",  # the image has a passwd file with more than root, and run(user=…) may switch
    "outside-view",  # processes of the sandbox are visible to the driver's host
    "shared-sandbox",  # two slots in one sandbox with at least the level `uid` between them
    "confined",  # the slot is kept from the machine: any level above `none`
    "kill-sandbox",  # the sandbox can be killed from outside
    "own-root",  # the slot has a root of its own over an image
    "picklable-factory",  # the pool factory can be handed to a second driver process
]
NEEDS: tuple[str, ...] = get_args(Need)


class NotGiven(Exception):
    """Raised inside a check when the backend or image cannot provide the behaviour. The text is the reason shown."""


@dataclass(frozen=True, slots=True)
class Check:
    """One behaviour. `own_pool` checks use no slot of the shared pool; `alone` checks run by themselves."""

    name: str
    group: str
    meaning: str
    run: CheckFunction
    needs: tuple[Need, ...] = ()
    own_pool: bool = False
    alone: bool = False
    timeout_s: float = 60.0


_CHECKS: dict[str, Check] = {}


def check(
    group: str, *needs: Need, own_pool: bool = False, alone: bool = False, timeout_s: float = 60.0
) -> Callable[[CheckFunction], CheckFunction]:
    """Register an async function `check_<name>(ctx)`. The first sentence of its docstring is its meaning.

    Raises:
        ValueError: If the name is taken or does not start with `check_`, or if there is no docstring.
    """

    def register(function: CheckFunction) -> CheckFunction:
        name = getattr(function, "__name__", "")
        meaning = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
        if not name.startswith("check_") or not meaning or name in _CHECKS:
            raise ValueError(f"{name}: a check is a new function check_<behaviour> with a docstring")
        short = name.removeprefix("check_")
        _CHECKS[name] = Check(short, group, meaning, function, needs, own_pool, alone, timeout_s)
        return function

    return register


def all_checks() -> list[Check]:
    """Return all checks, grouped, in a stable order."""
    from hermes_exec.testing.conformance import checks

    for module in sorted(pkgutil.iter_modules(checks.__path__), key=lambda m: m.name):
        importlib.import_module(f"{checks.__name__}.{module.name}")
    return list(_CHECKS.values())
