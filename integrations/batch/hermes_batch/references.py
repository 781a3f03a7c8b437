"""Python objects that are named by text: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType

from hermes_exec.config import nearest
from hermes_exec.errors import ConfigError


def resolve_reference(text: str) -> str:
    """Return a reference that is the same in every directory: with the whole path of its file.

    Raises:
        ConfigError: If the text is no reference.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigError(f"give file.py:name or package.module:name, not {text!r}")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else text


def load_reference(text: str) -> object:
    """Return the object of a reference. A file is run once in a process; files beside it can be imported.

    Raises:
        ConfigError: If there is no such file, module or name, or if it cannot be run.
    """
    place, _, name = resolve_reference(text).rpartition(":")
    module = _load_module(place)
    if not hasattr(module, name):
        names = [each for each in vars(module) if not each.startswith("_")]
        raise ConfigError(f"{place} has no {name!r}; {nearest(name, names)}")
    return getattr(module, name)


@cache
def _load_module(place: str) -> ModuleType:
    try:
        return _run_file(Path(place)) if place.endswith(".py") else import_module(place)
    except (Exception, SystemExit) as error:  # a program without `if __name__ == "__main__"` may end with sys.exit()
        raise ConfigError(f"cannot load {place}: {type(error).__name__}: {error}") from error


def _run_file(path: Path) -> ModuleType:
    name = f"hermes_batch_file_{sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle find their module there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
