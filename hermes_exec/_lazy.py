"""Names of a package that are loaded when they are first used, so that importing the package costs next to nothing."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module


def lazy_attributes(
    package: str, names: Sequence[str], where: Sequence[str] = (), modules: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose `names` are in its modules `where`, cheap ones first.

    Its public `modules` are names of the package too.
    """

    def load(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name in names:
            for module in where:
                attributes = vars(import_module(f"{package}.{module}"))
                if name in attributes:
                    return vars(sys.modules[package]).setdefault(name, attributes[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted({*vars(sys.modules[package]), *names, *modules})
