"""The options of the Modal backend."""

from __future__ import annotations

import logging
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from hermes_exec.config.backend import BackendConfig
from hermes_exec.config.model import Volume
from hermes_exec.config.pool import PoolConfig, merge_options

logger = logging.getLogger(__name__)
DAY_S = 86_400
INSTALL = "pip install -U 'hermes-exec[modal]'"
TOKEN = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"


class ModalConfig(BackendConfig):
    """Sandboxes as sandboxes of Modal. The `modal` client finds the credentials: `MODAL_TOKEN_ID` and
    `MODAL_TOKEN_SECRET`, or `~/.modal.toml`.
    """

    backend: ClassVar[str] = "modal"
    default_slots: ClassVar[int] = 8

    creates_per_s: Annotated[float, Field(gt=0)] | None = 5.0

    image: str | None = None
    """Image of sandboxes if the pool and the profile name none: a name in a registry, `dockerfile:DIR`, the id of a
    Modal image (`im-…`), or a name in `images`.
    """
    images: SkipJsonSchema[dict[str, Any]] = Field(default_factory=dict, exclude=True, repr=False)
    """`modal.Image` objects by the names that `image` uses for them (in Python only)."""
    registry_secret: str | None = None
    """Name of the Modal secret with the credentials of the images' registry."""
    app_name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,64}$")] = "hermes-exec"
    """App of the sandboxes, made if it is missing. `ps` and `reap` look into this app only."""
    environment: str | None = None
    """Modal environment; None for the client's own."""
    region: str | tuple[str, ...] | None = None
    cloud: str | None = None
    runtime: Literal["gvisor", "vm"] | None = None
    """How a sandbox is isolated; None for Modal's choice."""
    gpus: Annotated[int, Field(ge=1)] | str | None = None
    """A GPU by Modal's name (`"T4"`, `"A100:2"`), or a number of any type."""
    modal_secrets: tuple[str, ...] = ()
    """Names of Modal secrets that become variables of the sandbox. A secret for one pool alone belongs in its
    `secrets`.
    """
    env: dict[str, str] = Field(default_factory=dict)
    """Further variables of the sandbox."""
    volumes: tuple[Volume, ...] = ()
    """Modal volumes in the sandbox, as `name:target` or `name:target:ro`."""
    shared_volumes: tuple[Volume, ...] = ()
    """Like `volumes`, but all slots write to them. Of `volumes`, a slot with its own root has a private view, which
    ends with the slot.
    """
    idle_timeout_s: Annotated[int, Field(ge=10)] = 300
    """Modal ends a sandbox after this time without an open stream. It must leave time to reopen a lost stream; the
    lease of the pool is the shorter bound.
    """
    lifetime_s: Annotated[int, Field(ge=60, le=DAY_S)] | None = None
    """Modal ends a sandbox at this age. A minute before, its slots are no longer acquired. None: an hour more than the
    pool's `max_lifetime_s`, or without that a day, Modal's maximum.
    """
    profiles_file: str | None = None
    """Path of a `modal_profiles.yaml`. Its profiles become the pool's; its `default_profile` sets options that the pool
    leaves out.
    """

    @classmethod
    def expand(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Expand `profiles_file` into its profiles; options of the pool take precedence. See `BackendConfig.expand`."""
        path = (values.get("backend_options") or {}).get("profiles_file", values.get("profiles_file"))
        if path is None:
            return values
        from hermes_exec.config.older_names import import_profiles

        own, _, left_out = import_profiles(str(path))
        for message in left_out:
            logger.warning("%s", message)
        fields = PoolConfig.model_fields
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in values.keys() & fields.keys()}
        explicit = {name: value for name, value in values.items() if value is not None and value != defaults.get(name)}
        return merge_options(own, explicit)
