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
    """Sandboxes that are sandboxes of Modal. Credentials are found as the `modal` client finds them: `MODAL_TOKEN_ID`
    and `MODAL_TOKEN_SECRET`, or `~/.modal.toml`.
    """

    backend: ClassVar[str] = "modal"
    default_slots: ClassVar[int] = 8

    creates_per_s: Annotated[float, Field(gt=0)] | None = 5.0

    image: str | None = None
    """Image of sandboxes for which the pool and the profile name none: a name in a registry, `dockerfile:DIR`, the id
    of an image of Modal (`im-…`), or a name in `images`.
    """
    images: SkipJsonSchema[dict[str, Any]] = Field(default_factory=dict, exclude=True, repr=False)
    """`modal.Image` objects by the names that `image` uses for them (in Python only)."""
    registry_secret: str | None = None
    """Name of the Modal secret with the credentials of the images' registry."""
    app_name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,64}$")] = "hermes-exec"
    """App that the sandboxes belong to; it is made where it is missing. `ps` and `reap` look into this one."""
    environment: str | None = None
    """Modal environment; None for the client's own."""
    region: str | tuple[str, ...] | None = None
    cloud: str | None = None
    runtime: Literal["gvisor", "vm"] | None = None
    """What isolates a sandbox; None for Modal to choose."""
    gpus: Annotated[int, Field(ge=1)] | str | None = None
    """A GPU as Modal names it (`"T4"`, `"A100:2"`), or a number of any kind."""
    modal_secrets: tuple[str, ...] = ()
    """Names of Modal secrets that become variables of the sandbox. What only one pool needs belongs in its
    `secrets`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further variables of the sandbox."""
    volumes: tuple[Volume, ...] = ()
    """Modal volumes in the sandbox, as `name:target` or `name:target:ro`."""
    shared_volumes: tuple[Volume, ...] = ()
    """The same, written to by all slots. Of `volumes` a slot with a root of its own has a view of its own, which ends
    with it."""
    idle_timeout_s: Annotated[int, Field(ge=10)] = 300
    """Modal ends a sandbox into which no stream was open for so long. It has to leave time for a lost one to be opened
    again: the lease of the pool is the shorter bound."""
    lifetime_s: Annotated[int, Field(ge=60, le=DAY_S)] | None = None
    """Modal ends a sandbox at this age; a minute before, its slots are not lent any more. None: an hour more than the
    pool's `max_lifetime_s`, and a day, the most that Modal gives, where that is None too."""
    profiles_file: str | None = None
    """Path of a `modal_profiles.yaml`: its profiles become those of the pool, its `default_profile` counts where
    the pool says nothing."""

    @classmethod
    def expand(cls, values: dict[str, Any]) -> dict[str, Any]:
        """See `BackendConfig.expand`: with the profiles of `profiles_file`; what the pool says counts more."""
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
