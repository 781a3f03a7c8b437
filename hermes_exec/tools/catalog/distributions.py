"""Random selection of toolsets for data generation, from named distributions and a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError
from hermes_exec.tools.catalog.toolsets import TOOLSETS, select

_MAIN_TOOLSETS = ("web", "vision", "image_gen", "terminal", "file", "browser")


def _percent(**chances: int) -> Mapping[str, int]:
    return MappingProxyType(chances)


DISTRIBUTIONS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "default": _percent(**dict.fromkeys(_MAIN_TOOLSETS, 100)),
        "image_gen": _percent(image_gen=90, vision=90, web=55, terminal=45),
        "research": _percent(web=90, browser=70, vision=50, terminal=10),
        "science": _percent(web=94, terminal=94, file=94, vision=65, browser=50, image_gen=15),
        "development": _percent(terminal=80, file=80, web=30, vision=10),
        "safe": _percent(web=80, browser=70, vision=60, image_gen=60),
        "balanced": _percent(**dict.fromkeys(_MAIN_TOOLSETS, 50)),
        "minimal": _percent(web=100),
        "terminal_only": _percent(terminal=100, file=100),
        "terminal_web": _percent(terminal=100, file=100, web=100),
        "creative": _percent(image_gen=90, vision=90, web=30),
        "reasoning": _percent(web=90, file=60, terminal=20),
        "browser_use": _percent(browser=100, web=80, vision=70),
        "browser_only": _percent(browser=100),
        "browser_tasks": _percent(browser=97, vision=12, terminal=15),
        "terminal_tasks": _percent(terminal=97, file=97, web=97, browser=75, vision=50, image_gen=10),
        "mixed_tasks": _percent(browser=92, terminal=92, file=92, web=35, vision=15, image_gen=15),
    }
)
"""Distribution name to the chance of each toolset in percent. The toolsets are drawn independently."""


@dataclass(frozen=True)
class Draw:
    """The drawn toolsets: those with tools in this package, and those without, which are dropped."""

    toolsets: tuple[str, ...]
    dropped: tuple[str, ...]


def list_distributions() -> tuple[str, ...]:
    """Return the names of the distributions."""
    return tuple(DISTRIBUTIONS)


def draw_toolsets(
    distribution: str | Mapping[str, float],
    seed: int | str,
    *keys: int | str,
    strict: bool = False,
    provided: Iterable[str] = (),
) -> Draw:
    """Draw toolsets from a named distribution or from a mapping of toolset to percent.

    The same `seed` and `keys` give the same draw on every machine. `keys` identify the draw, for example by the index
    of an item or the number of a group. If nothing is drawn, the result is the toolset with the highest chance, the
    first of equals. A toolset without a tool in this package or in `provided` (names of host tools) is drawn like any
    other, and then listed in `dropped`.

    Raises:
        ConfigError: If a name is unknown, if a chance is outside 0 to 100, or, with `strict`, if the distribution has a
            toolset without a tool.
    """
    chances = _chances(distribution)
    provided_names = frozenset(provided)
    available = {name for name in chances if select([name]).tools or provided_names.intersection(TOOLSETS[name])}
    if strict and (absent := [name for name, chance in chances.items() if chance and name not in available]):
        raise ConfigError(
            f"the distribution has toolsets without a tool here: {', '.join(absent)}; provide them with @tool, or "
            "leave strict away"
        )
    generator = random.Random(":".join(map(str, (seed, *keys))) if keys else seed)
    drawn = [name for name, percent in chances.items() if generator.random() * 100 < percent]
    if not drawn:
        drawn = [max(chances, key=lambda name: chances[name])]
    return Draw(
        tuple(name for name in drawn if name in available), tuple(name for name in drawn if name not in available)
    )


def _chances(distribution: str | Mapping[str, float]) -> Mapping[str, float]:
    if isinstance(distribution, str):
        if distribution not in DISTRIBUTIONS:
            raise ConfigError(f"unknown distribution {distribution!r}; {nearest(distribution, DISTRIBUTIONS)}")
        return DISTRIBUTIONS[distribution]
    if not distribution:
        raise ConfigError("a distribution needs at least one toolset")
    for name, percent in distribution.items():
        if name not in TOOLSETS:
            raise ConfigError(f"unknown toolset {name!r} in the distribution")
        if not 0 <= percent <= 100:
            raise ConfigError(f"the chance of {name!r} must be 0 to 100 percent, not {percent!r}")
    return distribution
