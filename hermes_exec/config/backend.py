"""Base of the configuration classes of all backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, PrivateAttr

from hermes_exec.config.model import ConfigModel

T = TypeVar("T")


class BackendConfig(ConfigModel):
    """Base of the configuration classes of backends, with the options that only one backend understands.

    Third parties derive from it too. A class with a field `image` configures sandboxes that have images.
    """

    backend: ClassVar[str]
    """Name of the backend that this configures."""
    default_slots: ClassVar[int] = 1
    """Slots of one sandbox if the pool does not set them."""
    creates_per_s: Annotated[float, Field(gt=0)] | None = 20.0
    """Most sandboxes started in a second by all programs of this user on this host; None for no bound."""
    launches_at_once: Annotated[int, Field(ge=1)] = 4
    """Most sandboxes of a pool that may be launching at the same time."""

    @classmethod
    def expand(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Expand options that stand for others, such as a file of profiles. Pool and backend options are flat, as in
        `SandboxPool`.

        Raises:
            ConfigError: If an option cannot be expanded.
        """
        return values

    _wrap: Callable[[Any], Any] | None = PrivateAttr(default=None)

    @property
    def default_max_sandboxes(self) -> int:
        """Most sandboxes if the pool does not set them."""
        return 4

    def sizes(self, sandboxes: int, slots: int) -> Mapping[int, int]:
        """Return the sizes of so many sandboxes if all of them start: slots in a sandbox → number of such sandboxes.

        All have `slots`, the pool's value, unless the backend has sizes of its own (see `HasSlotCount`).
        """
        return {slots: sandboxes}

    def each_host(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the options that select a single host, by the name of the host; none where the backend has one
        host.
        """
        return {}

    def with_wrapper(self, wrap: Callable[[Any], Any]) -> Self:
        """Return a copy of the configuration whose backend is wrapped by `wrap` (see `testing.faults`)."""
        copy = self.model_copy()
        copy._wrap = wrap
        return copy

    def with_options(self, options: dict[str, Any]) -> Self:
        """Return a copy of the configuration with other values for some fields.

        Raises:
            ConfigError: If a name or a value is wrong.
        """
        values = {name: getattr(self, name) for name in self.model_fields_set}
        copy = type(self).of({**values, **options})
        copy._wrap = self._wrap
        return copy

    def wrap(self, backend: T) -> T:
        """Return the backend, wrapped as `with_wrapper` requested."""
        wrapped: T = backend if self._wrap is None else self._wrap(backend)
        return wrapped
