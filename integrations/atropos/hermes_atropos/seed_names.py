"""Names of settings that older environments had, and what became of each."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

_LOG = logging.getLogger(__name__)
_OLD = "an older name, see docs/environments"


class SeedNames(BaseModel):
    """Fields that older environments had; each is read once, as the setting that took its place."""

    tool_pool_mode: str | None = Field(None, description=_OLD)
    terminal_backend: str | None = Field(None, description=_OLD)
    terminal_timeout: float | None = Field(None, description=_OLD)
    terminal_lifetime: float | None = Field(None, description=_OLD)
    tool_pool_size: int | None = Field(None, description=_OLD)
    allow_network: bool | None = Field(None, description=_OLD)
    require_sandbox: bool | None = Field(None, description=_OLD)
    purge_job_on_start: bool | None = Field(None, description=_OLD)
    purge_job_on_shutdown: bool | None = Field(None, description=_OLD)
    extra_body: str | None = Field(None, description=_OLD)
    nomad_address: str | None = Field(None, description=_OLD)
    sandbox_job_id: str | None = Field(None, description=_OLD)
    sandbox_image: str | None = Field(None, description=_OLD)
    slots_per_container: int | None = Field(None, description=_OLD)
    min_containers: int | None = Field(None, description=_OLD)
    max_containers: int | None = Field(None, description=_OLD)
    privileged: bool | None = Field(None, description=_OLD)
    driver: str | None = Field(None, description=_OLD)
    singularity_image: str | None = Field(None, description=_OLD)
    modal_app_name: str | None = Field(None, description=_OLD)
    modal_image: str | None = Field(None, description=_OLD)
    modal_gpu: str | None = Field(None, description=_OLD)
    modal_cpu: float | None = Field(None, description=_OLD)
    modal_memory: int | None = Field(None, description=_OLD)
    modal_slots_per_sandbox: int | None = Field(None, description=_OLD)
    modal_min_sandboxes: int | None = Field(None, description=_OLD)
    modal_max_sandboxes: int | None = Field(None, description=_OLD)
    modal_idle_timeout: float | None = Field(None, description=_OLD)
    modal_max_lifetime: float | None = Field(None, description=_OLD)
    modal_acquire_timeout: float | None = Field(None, description=_OLD)
    modal_execution_timeout: float | None = Field(None, description=_OLD)
    modal_secrets: str | None = Field(None, description=_OLD)
    modal_env_vars: str | None = Field(None, description=_OLD)
    modal_workspace_base: str | None = Field(None, description=_OLD)


def _names(text: object) -> list[str]:
    return [name.strip() for name in str(text).split(",") if name.strip()]


def _variables(text: object) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in str(text).split(";") if pair.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


class _Became(NamedTuple):
    """What a name became: a setting, `option:NAME` of the backend, or nothing, and why. `of`: for this backend."""

    setting: str = ""
    why: str = ""
    of: str | None = None
    convert: Callable[[Any], object] | None = None


BECAME: Mapping[str, _Became] = {
    "tool_pool_mode": _Became("backend"),
    "terminal_backend": _Became("backend"),
    "terminal_timeout": _Became("terminal_timeout_s"),
    "terminal_lifetime": _Became("max_lifetime_s"),
    "tool_pool_size": _Became("", "tool calls run in the event loop, without a pool of threads"),
    "allow_network": _Became("network"),
    "require_sandbox": _Became("min_isolation", convert=lambda wanted: "namespaces" if wanted else "none"),
    "purge_job_on_start": _Became("option:purge_on_start", of="nomad"),
    "purge_job_on_shutdown": _Became("option:purge_on_shutdown", of="nomad"),
    "extra_body": _Became("sampling"),
    "nomad_address": _Became("option:address", of="nomad"),
    "sandbox_job_id": _Became("", "every box is a job of its own, with a name of its own", of="nomad"),
    "sandbox_image": _Became("image", of="nomad"),
    "slots_per_container": _Became("slots_per_sandbox", of="nomad"),
    "min_containers": _Became("min_sandboxes", of="nomad"),
    "max_containers": _Became("max_sandboxes", of="nomad"),
    "privileged": _Became("", "nothing here needs a privileged container", of="nomad"),
    "driver": _Became("option:driver", of="nomad"),
    "singularity_image": _Became("image", of="nomad"),
    "modal_app_name": _Became("option:app_name", of="modal"),
    "modal_image": _Became("image", of="modal"),
    "modal_gpu": _Became("option:gpus", of="modal"),
    "modal_cpu": _Became("cpus", of="modal"),
    "modal_memory": _Became("memory_mb", of="modal"),
    "modal_slots_per_sandbox": _Became("slots_per_sandbox", of="modal"),
    "modal_min_sandboxes": _Became("min_sandboxes", of="modal"),
    "modal_max_sandboxes": _Became("max_sandboxes", of="modal"),
    "modal_idle_timeout": _Became("idle_timeout_s", of="modal"),
    "modal_max_lifetime": _Became("max_lifetime_s", of="modal"),
    "modal_acquire_timeout": _Became("acquire_timeout_s", of="modal"),
    "modal_execution_timeout": _Became("terminal_timeout_s", of="modal"),
    "modal_secrets": _Became("option:modal_secrets", of="modal", convert=_names),
    "modal_env_vars": _Became("option:env", of="modal", convert=_variables),
    "modal_workspace_base": _Became("", "where slots have their workspaces is the pool's own matter", of="modal"),
}


def _typed(given: dict[str, Any]) -> dict[str, Any]:
    """The values as what their fields are: flags are texts. Raises ValueError."""
    try:
        return SeedNames.model_validate(given).model_dump(exclude_none=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise ValueError(f"{wrong['loc'][0]}: {wrong['msg']}") from None


def translate(values: dict[str, Any]) -> dict[str, Any]:
    """The settings with those of older names in the place of what they became; each is told in the log."""
    given = _typed({name: values.pop(name) for name in BECAME if values.get(name) is not None})
    if given.get("tool_pool_mode") == "default":
        del given["tool_pool_mode"]
    backend = given.get("tool_pool_mode") or given.get("terminal_backend") or values.get("backend") or "local"
    options = dict(json.loads(values.get("backend_options") or "{}"))
    for name, value in given.items():
        became = BECAME[name]
        if became.of not in (None, backend):
            _LOG.warning("%s has no meaning with backend %s, and is ignored", name, backend)
        elif not became.setting:
            _LOG.warning("%s is ignored: %s", name, became.why)
        else:
            kind, _, option = became.setting.rpartition(":")
            value = value if became.convert is None else became.convert(value)
            (options if kind else values)[option] = value
            _LOG.warning("%s is now %s%s", name, "in backend_options: " if kind else "", option)
    if options:
        values["backend_options"] = json.dumps(options)
    return values
