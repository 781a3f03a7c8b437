"""Secrets in the configuration of a backend are masked like those of a pool, wherever they stand in it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from hermes_batch import BatchConfig
from hermes_batch.settings import read_config, write_settings
from hermes_exec import BackendUnavailable, ConfigError, LaunchError, SandboxPool
from hermes_exec.backends.registry import config_type
from hermes_exec.config import PoolConfig, mask_settings, secret_fields
from hermes_exec.redact import secret_values
from tests.support.guarded import install

pytestmark = pytest.mark.anyio
TOKEN, PHRASE, OTHER = "right-s3cret", 'p"hräse-s3cret', "profile-s3cret"


@pytest.fixture(autouse=True)
def guarded(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path_factory.mktemp("site"))))


def settings(**more: Any) -> dict[str, Any]:
    """A pool on a backend with a token and the phrase of a key, and another token in a profile."""
    own = {"type": "guarded", "token": TOKEN, "keys": [{"name": "mine", "phrase": PHRASE}]}
    profiles = {"other": {"backend_options": {"token": OTHER}}}
    return {"backends": {"cluster": {**own, **more}}, "profiles": profiles}


async def test_they_are_found_wherever_they_stand() -> None:
    pool = SandboxPool.from_config(settings(), backend="cluster", secrets={"OWN": "of-the-pool"})
    said = f"{TOKEN} {PHRASE} {json.dumps(PHRASE)} {OTHER} of-the-pool mine"
    assert pool.mask(said) == '*** *** "***" *** *** mine'
    kind = config_type("guarded")
    assert secret_fields(kind) == {"token", "phrase"}
    assert "s3cret" not in repr(pool.config) + repr(pool._templates.backend_configs) + repr(pool._templates.all[0])
    assert secret_values(kind.of({"token": ""})) == []


async def test_a_variable_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_EXEC_BACKEND", "guarded")
    for token in ("12345", "[s3cret", "a: b"):
        monkeypatch.setenv("HERMES_EXEC_TOKEN", token)
        assert SandboxPool.from_env().mask(f"<{token}>") == "<***>"


async def test_traces_logs_and_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = tmp_path / "trace.jsonl"
    events: list[object] = []
    with caplog.at_level(logging.DEBUG):
        pool = SandboxPool.from_config(settings(), backend="cluster", trace=trace, on_event=events.append)
        async with pool, pool.slot(owner=f"for {TOKEN}") as slot:
            assert (await slot.run("echo fine")).stdout == "fine\n"
    assert len(events) >= 4
    assert "for ***" in trace.read_text("utf-8")
    assert "for ***" in caplog.text
    assert "s3cret" not in trace.read_text("utf-8") + caplog.text + repr(pool)


@pytest.mark.parametrize(("token", "kind"), [("wrong-s3cret", BackendUnavailable), ("late-s3cret", LaunchError)])
async def test_errors_of_the_engine_and_what_they_came_from(
    token: str, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    pool = SandboxPool.from_config(settings(token=token), backend="cluster")
    with caplog.at_level(logging.DEBUG), pytest.raises(kind, match=r"\*\*\*") as caught:
        async with pool:
            await pool.acquire()
    told = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "s3cret" not in told + caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": ["s3cret"]},
        {"keys": [{"phrase": ["s3cret"]}]},
        {"keys": {"phrase": "s3cret"}},
        {"keys": "s3cret"},
    ],
)
async def test_wrong_values_where_a_secret_may_stand_are_not_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        SandboxPool.from_config(settings(**wrong), backend="cluster")
    assert next(iter(wrong)) in str(caught.value)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="not 'blue'"):
        SandboxPool.from_config(settings(creates_per_s="blue"), backend="cluster")


async def test_settings_that_are_written_down() -> None:
    fields = secret_fields(PoolConfig) | secret_fields(config_type("guarded"))
    flat = {"token": TOKEN, "keys": [{"name": "mine", "phrase": PHRASE}], "secrets": {"A": "x"}, "image": "i"}
    assert mask_settings({**flat, "profiles": settings()["profiles"]}, fields) == {
        "token": "***",
        "keys": [{"name": "mine", "phrase": "***"}],
        "secrets": {"A": "***"},
        "image": "i",
        "profiles": {"other": {"backend_options": {"token": "***"}}},
    }


async def test_what_a_batch_run_writes_down(tmp_path: Path) -> None:
    given = {"token": TOKEN, "profiles": settings()["profiles"], "lease_s": 30}
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text('{"prompt": "a"}\n')
    config = BatchConfig(dataset=dataset, out=tmp_path, model="m", backend="guarded", backend_options=given)
    write_settings(config, {})
    assert "s3cret" not in (tmp_path / "run.json").read_text()
    with pytest.raises(ConfigError, match="profiles, token, which is not stored: give it again"):
        read_config(tmp_path)
    assert read_config(tmp_path, backend_options=given).backend_options == given
