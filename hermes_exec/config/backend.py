"""What the configuration classes of all backends have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, PrivateAttr

from hermes_exec.config.model import ConfigModel

T = TypeVar("T")


class BackendConfig(ConfigModel):
    """Base of the configuration classes of backends, with the options that only this backend understands; third parties
    derive from it too. A class with a field `image` is one of sandboxes that have images.
    """

    backend: ClassVar[str]
    """The name of the backend that this configures."""
    default_slots: ClassVar[int] = 1
    """Slots in one sandbox where the pool does not set them."""
    creates_per_s: Annotated[float, Field(gt=0)] | None = 20.0
    """Most sandboxes that are begun in a second, by all programs of this user on this host together; None for no bound.
    """
    launches_at_once: Annotated[int, Field(ge=1)] = 4
    """Most sandboxes of a pool that are being launched at the same time."""

    @classmethod
    def expand(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The options of a pool and of this backend, flat as `SandboxPool` takes them, with what some of them stand
        for, such as a file of profiles. ConfigError where that cannot be had.
        """
        return values

    _wrap: Callable[[Any], Any] | None = PrivateAttr(default=None)

    @property
    def default_max_sandboxes(self) -> int:
        """Most sandboxes where the pool does not set them."""
        return 4

    def sizes(self, sandboxes: int, slots: int) -> Mapping[int, int]:
        """How many slots so many sandboxes have when all is well: slots in a sandbox → sandboxes of that size.
        `slots` is what the pool says; it holds for all sandboxes unless the backend has its own numbers (see
        `OwnSize`).
        """
        return {slots: sandboxes}

    def with_wrapper(self, wrap: Callable[[Any], Any]) -> Self:
        """The same configuration, with something around the backend that is made from it (see `testing.faults`)."""
        copy = self.model_copy()
        copy._wrap = wrap
        return copy

    def with_options(self, options: dict[str, Any]) -> Self:
        """The same configuration with other values for some fields. ConfigError for a wrong name or value."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        copy = type(self).of({**values, **options})
        copy._wrap = self._wrap
        return copy

    def wrap(self, backend: T) -> T:
        """The backend, or what `with_wrapper` put around it."""
        wrapped: T = backend if self._wrap is None else self._wrap(backend)
        return wrapped
