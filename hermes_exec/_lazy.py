"""Package attributes that are loaded at their first use, so that importing a package is cheap."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module


def lazy_attributes(
    package: str,
    names: Sequence[str],
    where: Sequence[str] = (),
    modules: Sequence[str] = (),
    requires: str | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package.

    Args:
        package: Name of the package.
        names: Names that are loaded from the modules `where`.
        where: Modules of the package, cheap ones first.
        modules: Public modules of the package.
        requires: The package that the modules `where` need, as for `require_version`; checked before they are imported.
    """

    # Not the obvious code: see docs/why-not-obvious.md ("Imports at first use").
    def load(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name in names:
            if requires is not None:
                from hermes_exec.requirements import require_version

                require_version(package, requires)
            for module in where:
                attributes = vars(import_module(f"{package}.{module}"))
                if name in attributes:
                    return vars(sys.modules[package]).setdefault(name, attributes[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load, lambda: sorted({*vars(sys.modules[package]), *names, *modules})
