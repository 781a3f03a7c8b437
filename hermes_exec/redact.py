"""Secret values of a pool, and texts and data without them."""

from __future__ import annotations

import json
from typing import TypeVar, cast

from pydantic import SecretStr

from hermes_exec.config import PoolConfig

T = TypeVar("T")


def secret_values(config: PoolConfig) -> list[str]:
    """What must not appear in logs, longest first: the values of secrets, as they are and as JSON writes them."""
    found: list[SecretStr] = [*config.secrets.values()]
    for profile in config.profiles.values():
        found += (profile.secrets or {}).values()
    values = {secret.get_secret_value() for secret in found}
    written = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for value in values for ascii_only in (True, False)}
    return sorted((values | written) - {""}, key=len, reverse=True)


def masked(text: str, secrets: list[str]) -> str:
    """Text without what `secret_values` lists."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def masked_data(data: T, secrets: list[str]) -> T:
    """JSON data with the values of secrets masked in every text of it; names of fields stay."""
    result: object = data
    if isinstance(data, str):
        result = masked(data, secrets)
    elif isinstance(data, dict):
        result = {name: masked_data(value, secrets) for name, value in data.items()}
    elif isinstance(data, list):
        result = [masked_data(value, secrets) for value in data]
    return cast(T, result)
