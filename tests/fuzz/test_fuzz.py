"""Bugs that were found stay fixed, and a short round of each fuzzer finds nothing; `make fuzz` runs the long one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice, product
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_exec.channel.frames import parse_json
from hermes_exec.errors import ProtocolError
from tests.fuzz import mutate
from tests.fuzz.campaign import SLOW, go_targets
from tests.fuzz.decoders import ANSWERS, DECODERS, answers, messages
from tests.fuzz.drivers import Runner, attack
from tests.fuzz.episodes import channel_episode, impatient
from tests.fuzz.pools import pool_episode
from tests.fuzz.seeds import SEEDS
from tests.fuzz.unguided import CORPUS, changed, corpus

KEPT = [(decoder, name, data) for decoder in DECODERS for name, data in corpus(decoder)]
fast = st.sampled_from(sorted(set(DECODERS) - {"archive"}))


@pytest.mark.parametrize(
    ("decoder", "data"), [each[::2] for each in KEPT], ids=[f"{each[0]}-{each[1]}" for each in KEPT]
)
def test_kept_inputs(decoder: str, data: bytes) -> None:
    DECODERS[decoder](data)


def test_the_corpus_holds_every_seed() -> None:
    for decoder, seeds in SEEDS.items():
        assert {f"seed-{name}" for name in seeds} <= {path.name for path in (CORPUS / decoder).iterdir()}


@given(fast, st.binary(max_size=300))
def test_any_bytes(decoder: str, data: bytes) -> None:
    DECODERS[decoder](data)


@settings(max_examples=300)
@given(fast, st.integers(0, 2**32))
def test_changed_inputs(decoder: str, seed: int) -> None:
    for data in islice(changed(decoder, seed), 5):
        DECODERS[decoder](data)


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_changed_archives(seed: int) -> None:
    for data in islice(changed("archive", seed), 2):
        DECODERS["archive"](data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.integers(0, 2**32), json_values)
def test_any_json_in_the_place_of_a_value(seed: int, value: object) -> None:
    rng = Random(seed)
    data = rng.choice(list(SEEDS["answers"].values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutate, "HOSTILE", (json.dumps(value),))
        data = mutate.json_text(rng, data)
    messages(data)
    answers(data)


def at_depth(levels: int, work: Callable[[], None]) -> None:
    if levels:
        at_depth(levels - 1, work)
    else:
        work()


def test_values_that_are_nested_deep_are_refused_however_deep_the_caller_is() -> None:
    deep = parse_json(b'{"x":' + b"[" * 700 + b"]" * 700 + b"}")["x"]

    def read(answer: dict[str, Any], parse: Callable[[dict[str, Any]], None]) -> None:
        with suppress(ProtocolError):
            parse(answer)

    for data in SEEDS["answers"].values():
        whole = parse_json(data)
        for key, parse in product(whole, ANSWERS):
            at_depth(500, partial(read, {**whole, key: deep}, parse))


def test_hostile_sandboxes_and_a_channel() -> None:
    async def main() -> None:
        for seed in range(25):
            told = await channel_episode(seed)
            assert not told.wrong, f"python -m tests.fuzz channel --seed {seed}: {told.wrong}"
            assert seed or told.frames

    with impatient():
        anyio.run(main)


def test_hostile_sandboxes_and_a_pool() -> None:
    told = anyio.run(pool_episode, 0, 4)
    assert not told.wrong
    assert told.results


def test_a_hostile_driver_and_a_real_runner() -> None:
    with Runner() as runner:
        assert sum(attack(runner, seed) for seed in range(101)) > 1000


def test_the_campaign_knows_every_package_that_reads_what_others_write() -> None:
    packages = {package for package, _ in go_targets()}
    reading = "accounts cgroup files ipc proc rootfs search serve session slots tenants wire"
    assert packages >= set(reading.split())
    assert {name for _, name in go_targets()} >= set(SLOW) - set(DECODERS)
