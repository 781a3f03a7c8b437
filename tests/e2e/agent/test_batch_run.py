"""Batch runs over real slots: what is written, what may be scored, and what is left when a run is ended."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import zlib
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from examples.demo.leftovers import ProcessWatch, sandboxes_of
from hermes_batch import BatchConfig, BatchResult, Record, load, read_records, resume_batch, run_batch
from hermes_exec.backends.registry import make_backend
from hermes_exec.errors import ConfigError, ImageError
from hermes_exec.tools import draw_toolsets
from tests.conftest import BackendCase, require_engine
from tests.e2e.agent.plans import PlanModel, Step
from tests.unit.agent.endpoint import endpoint, ok

pytestmark = pytest.mark.anyio


def dataset(directory: Path, *entries: dict[str, Any]) -> Path:
    path = directory / "prompts.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


def config(directory: Path, plans: dict[str, list[Step]], *entries: dict[str, Any], **more: Any) -> BatchConfig:
    made = dataset(directory, *entries)
    return BatchConfig(**{"dataset": made, "out": directory / "out", "model": PlanModel(plans), "workers": 3, **more})


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "out" / "trajectories.jsonl").read_text("utf-8").splitlines()]


PACKED = re.compile(r"(?<=>)([\w+/]{16,}=*)(?=</script>)")


def text_of(path: Path) -> str:
    """The content of a file of a run: a table and the conversations of a report are compressed."""
    if path.suffix == ".parquet":
        return str(pq.read_table(path).to_pylist())
    return PACKED.sub(lambda found: zlib.decompress(b64decode(found[1])).decode(), path.read_text("utf-8"))


async def test_solved_unsolved_and_unchecked(tmp_path: Path, backend: BackendCase) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "seed.txt").write_text("seed\n")
    plans: dict[str, list[Step]] = {
        "good": [["cat sub/seed.txt > copy.txt"], "done"],
        "bad": [["echo nothing"], "done"],
        "free": ["hello"],
        "files": [["pwd; cat note.txt"], "done"],
    }
    check = '[ "$(cat copy.txt)" = seed ]'
    run = config(
        tmp_path,
        plans,
        {"prompt": "good", "id": "g", "tree": "tree", "check": check},
        {"prompt": "bad", "tree": "tree", "check": check},
        {"prompt": "free"},
        {"prompt": "files", "files": {"in/note.txt": "né\n"}, "cwd": "in", "check": "true"},
        backend=backend.backend,
        image=backend.options.get("image"),
    )
    seen: list[int] = []
    result = await run_batch(run, on_record=lambda done, _: seen.append(done.records))
    assert seen == [1, 2, 3, 4]
    assert (result.complete, result.solved, result.unscored, result.tool_calls) == (True, 2, 0, 3)
    written = lines(tmp_path)
    assert written == [*read_records(tmp_path / "out")]
    by_prompt = {record["prompt_index"]: record for record in written}
    assert [by_prompt[index]["solved"] for index in range(4)] == ["solved", "unsolved", "unchecked", "solved"]
    assert all(record["trainable"] and record["isolation"] and record["sandbox"] for record in written)
    assert by_prompt[0]["id"] == "g"
    assert by_prompt[1]["check"]["exit_code"] == 1
    assert "né" in by_prompt[3]["conversations"][3]["value"]
    assert "/in" in by_prompt[3]["conversations"][3]["value"]
    assert len({tuple(record) for record in written}) == 1
    assert "2 of 3" in (tmp_path / "out" / "report.html").read_text("utf-8")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["records"] == 4


async def test_secrets_are_masked_in_what_is_written(tmp_path: Path, backend: BackendCase) -> None:
    secret = 'hush "quoted" größe'
    run = config(
        tmp_path,
        {"tell": [['printf "%s\\n" "$TOKEN"; test "$TOKEN" = \'' + secret + "' && echo equal"], f"it is {secret}"]},
        {"prompt": "tell", "check": 'echo "$TOKEN"; test -n "$TOKEN"'},
        backend=backend.backend,
        image=backend.options.get("image"),
        backend_options={"secrets": {"TOKEN": secret}},
    )
    result = await run_batch(run)
    assert result.solved == 1
    (record,) = lines(tmp_path)
    said = [turn["value"] for turn in record["conversations"]]
    assert "equal" in said[-2]
    assert said[-1].endswith("it is ***")
    assert "***" in record["check"]["output"]
    for path in (tmp_path / "out").iterdir():
        assert "hush" not in text_of(path), path
        assert "größe" not in text_of(path), path


async def test_secrets_are_masked_where_programs_print_json(tmp_path: Path, backend: BackendCase) -> None:
    secrets = {"A": 'p"w\\q é-x9', "B": "-----BEGIN\nMIIabcdefgh\n-----END", "C": "пароль-секрет"}
    # Programs write JSON with and without other characters than ASCII; busybox has none that does.
    written = [json.dumps(secrets, ensure_ascii=way) for way in (True, False)]
    show = "; ".join(f"printf '%s\\n' '{text}'" for text in [*written, *map(json.dumps, written)])
    metadata: dict[str, Any] = {f"is {secrets['B']}": [{secrets["C"]: 1}, secrets["A"]]}
    run = config(
        tmp_path,
        {"tell": [[show], "done"]},
        {"prompt": "tell", "check": show, "metadata": metadata},
        backend=backend.backend,
        image=backend.options.get("image"),
        backend_options={"secrets": secrets},
    )
    await run_batch(run)
    (record,) = lines(tmp_path)
    assert json.loads(record["task_metadata"]) == {"is ***": [{"***": 1}, "***"]}
    assert record["check"]["output"].count('"***') == 12
    assert record["messages"].count("***") == 24
    for path in (tmp_path / "out").iterdir():
        text = text_of(path)
        assert not [part for part in ("x9", "MII", "секрет", "u0435") if part in text], path


async def test_every_prompt_has_a_slot_of_its_own(tmp_path: Path, backend: BackendCase) -> None:
    plans: dict[str, list[Step]] = {f"p{n}": [[f"ls; pwd; echo {n} > mine.txt; ls"], "done"] for n in range(6)}
    check = 'ls | wc -l | grep -qx " *1"'
    run = config(
        tmp_path,
        plans,
        *({"prompt": prompt, "check": check} for prompt in plans),
        backend=backend.backend,
        image=backend.options.get("image"),
    )
    result = await run_batch(run)
    assert (result.solved, result.unscored) == (6, 0)


async def test_images_of_the_prompts_are_enough(tmp_path: Path, backend: BackendCase) -> None:
    if "image" not in backend.options:
        pytest.skip("a backend without images")
    plans: dict[str, list[Step]] = {f"p{n}": ["done"] for n in range(2)}
    prompts = ({"prompt": prompt, "image": backend.options["image"], "check": "true"} for prompt in plans)
    assert (await run_batch(config(tmp_path, plans, *prompts, backend=backend.backend))).solved == 2


async def test_what_the_agent_left_running_does_not_disturb_the_check(tmp_path: Path, backend: BackendCase) -> None:
    plans: dict[str, list[Step]] = {"p": [["(while :; do echo x > out.txt; done) >/dev/null 2>&1 & sleep 0.2"], "done"]}
    check = "rm -f out.txt; sleep 0.3; [ ! -e out.txt ]"
    run = config(
        tmp_path, plans, {"prompt": "p", "check": check}, backend=backend.backend, image=backend.options.get("image")
    )
    assert (await run_batch(run)).solved == 1


async def test_check_that_hangs_is_not_scored(tmp_path: Path) -> None:
    run = config(tmp_path, {"p": ["done"]}, {"prompt": "p", "check": "sleep 60"}, check_timeout_s=0.5)
    await run_batch(run)
    (record,) = read_records(run.out)
    assert (record["solved"], record["check"]["timed_out"], record["trainable"]) == ("unscored", True, False)
    assert record["attempts"] == 1


async def test_broken_task_is_not_scored(tmp_path: Path) -> None:
    run = config(tmp_path, {"p": ["done"]}, {"prompt": "p", "cwd": "nowhere", "check": "true"})
    await run_batch(run)
    (record,) = read_records(run.out)
    assert (record["trainable"], record["solved"], record["cause"], record["finish"]) == (
        False,
        "unscored",
        "task",
        "infra",
    )
    assert record["api_calls"] == 0


def children_of(parent: int) -> set[int]:
    return {int(pid) for path in Path(f"/proc/{parent}/task").glob("*/children") for pid in path.read_text().split()}


async def test_sandbox_that_dies_spoils_its_own_prompt_only(tmp_path: Path) -> None:
    others = children_of(os.getpid())  # servers of other tests

    def kill_the_sandboxes(prompt: str, turn: int) -> None:
        if prompt == "dies" and turn == 1:
            for pid in children_of(os.getpid()) - others:
                os.kill(pid, signal.SIGKILL)

    plans: dict[str, list[Step]] = {"dies": [["true"], ["true"], "done"], "lives": [["true"], "done"]}
    entries = ({"prompt": "dies", "check": "true"}, {"prompt": "lives", "check": "true"})
    run = config(tmp_path, plans, *entries, model=PlanModel(plans, kill_the_sandboxes), workers=1, retries=0)
    await run_batch(run)
    first, second = read_records(run.out)
    assert [(r["trainable"], r["solved"], r["finish"]) for r in (first, second)] == [
        (False, "unscored", "infra"),
        (True, "solved", "answered"),
    ]
    assert first["cause"] == "infra"


@pytest.mark.parametrize(("deaths", "trainable", "attempts"), [(2, True, 3), (9, False, 3)])
async def test_infrastructure_failure_is_tried_again(
    tmp_path: Path, deaths: int, trainable: bool, attempts: int
) -> None:
    others = children_of(os.getpid())  # servers of other tests
    died = 0

    def kill_the_sandboxes(prompt: str, turn: int) -> None:
        nonlocal died
        if turn == 1 and died < deaths:
            died += 1
            for pid in children_of(os.getpid()) - others:
                os.kill(pid, signal.SIGKILL)

    plans: dict[str, list[Step]] = {"dies": [["touch a"], ["[ $(ls | wc -l) = 1 ] && touch b"], "done"]}
    run = config(
        tmp_path, plans, {"prompt": "dies", "check": "[ -e b ]"}, model=PlanModel(plans, kill_the_sandboxes), workers=1
    )
    result = await run_batch(run)
    (record,) = read_records(run.out)
    assert (record["trainable"], record["attempts"], result.unscored) == (trainable, attempts, int(not trainable))
    assert record["solved"] == ("solved" if trainable else "unscored")


async def test_cancelled_run_keeps_what_it_has_and_ends_its_sandboxes(tmp_path: Path, backend: BackendCase) -> None:
    plans: dict[str, list[Step]] = {"quick": [["true"], "done"], "slow": [["sleep 300"], "done"]}
    run_id = f"test-{tmp_path.name}"
    run = config(
        tmp_path,
        plans,
        *({"prompt": "quick"}, {"prompt": "slow"}, {"prompt": "slow"}),
        backend=backend.backend,
        image=backend.options.get("image"),
        backend_options={"run_id": run_id},
    )
    watch = ProcessWatch()
    with anyio.fail_after(60), anyio.CancelScope() as scope:

        def stop(result: BatchResult, record: Record) -> None:
            watch.look()
            scope.cancel()

        await run_batch(run, on_record=stop)
    assert scope.cancelled_caught
    assert [record["prompt_index"] for record in lines(tmp_path)] == [0]
    assert "before 2 of its prompts were done" in (tmp_path / "out" / "report.html").read_text("utf-8")
    assert not (tmp_path / "out" / "trajectories.parquet").exists()
    assert await sandboxes_of(make_backend(backend.backend), run_id) == []
    assert watch.list_left() == []


async def test_typed_table_is_written_when_a_run_has_ended(tmp_path: Path) -> None:
    plans: dict[str, list[Step]] = {"p": [["echo hi"], "done"], "q": ["done"]}
    run = config(tmp_path, plans, {"prompt": "p", "check": "true"}, {"prompt": "q"}, seed=3)
    await run_batch(run.model_copy(update={"limit": 1}))
    parquet = run.out / "trajectories.parquet"
    (row,) = pq.read_table(parquet).to_pylist()
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert row["messages"][1]["tool_calls"][0]["arguments"] == '{"command": "echo hi"}'
    assert [usage["prompt_tokens"] for usage in row["usage"]] == [10, 10]
    assert min(row["timings"][name] for name in ("queue_s", "tools_s", "check_s")) > 0
    assert json.loads(row["sampling"])["temperature"] == 1.0

    exists = []
    await resume_batch(run.out, model=run.model, limit=2, on_record=lambda *_: exists.append(parquet.exists()))
    assert exists == [False]
    assert pq.read_table(parquet).num_rows == 2
    assert load(run.out).equals(pq.read_table(parquet).replace_schema_metadata(None))
    before = parquet.stat().st_ino
    await resume_batch(run.out, model=run.model)
    assert (pq.read_table(parquet).num_rows, parquet.stat().st_ino) == (2, before)


async def test_earlier_results_are_not_overwritten(tmp_path: Path) -> None:
    run = config(tmp_path, {"p": ["done"]}, {"prompt": "p"})
    await run_batch(run)
    before = (tmp_path / "out" / "trajectories.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"results of an earlier run.*hermes-exec batch resume"):
        await run_batch(run)
    assert (tmp_path / "out" / "trajectories.jsonl").read_bytes() == before
    again = await run_batch(run.model_copy(update={"overwrite": True}))
    assert len(lines(tmp_path)) == again.records == 1


async def test_full_disk_is_one_plain_error(tmp_path: Path) -> None:
    run = config(tmp_path, {"p": ["done"]}, *({"prompt": "p"} for _ in range(4)))

    def full(result: BatchResult, record: Record) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await run_batch(run, on_record=full)
    assert len(lines(tmp_path)) >= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "dokcer"}, "docker"),
        ({"backend_options": {"memry": 1}}, "memry"),
        ({"backend_options": {"image": "debian"}}, "image is a setting of the run"),
        ({"toolsets": ("terminl",)}, "terminal"),
        ({"backend": "docker"}, "image"),
    ],
)
async def test_wrong_settings_are_an_error_before_anything(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    run = config(tmp_path, {"p": ["done"]}, {"prompt": "p"}, **changes)
    with pytest.raises(ConfigError, match=message):
        await run_batch(run)
    assert not (tmp_path / "out").exists()


@pytest.mark.docker
async def test_missing_image_is_an_error_before_anything(tmp_path: Path) -> None:
    require_engine("docker")
    run = config(
        tmp_path,
        {"p": ["done"]},
        {"prompt": "p"},
        backend="docker",
        image="hermes-exec-test/nowhere:1",
        backend_options={"pull_policy": "never"},
    )
    with pytest.raises(ImageError, match="nowhere"):
        await run_batch(run)
    assert not (tmp_path / "out" / "trajectories.jsonl").exists()


@pytest.mark.docker
async def test_sealed_checks_on_docker_use_one_container(tmp_path: Path, docker_image: Callable[[str], str]) -> None:
    require_engine("docker")
    steps: list[Step] = [["test ! -e /etc/mine && echo x > /etc/mine && echo right > a"], "done"]
    rows = [{"prompt": f"p{n}", "check": "grep right a && test ! -e /etc/mine"} for n in range(6)]
    plans = {row["prompt"]: steps for row in rows}
    run = config(tmp_path, plans, *rows, backend="docker", image=docker_image("debian"), workers=3)
    result = await run_batch(run)
    assert result.solved == 6
    assert len({record["sandbox"] for record in lines(tmp_path)}) == 1


async def test_toolsets_are_drawn_for_each_prompt_and_what_has_no_tool_is_told_once(tmp_path: Path) -> None:
    plans: dict[str, list[Step]] = {f"p{n}": ["done"] for n in range(8)}
    run = config(tmp_path, plans, *({"prompt": prompt} for prompt in plans), distribution="terminal_tasks", seed=4)
    told: list[tuple[str, ...]] = []
    result = await run_batch(run, on_start=lambda so_far: told.append(so_far.left_out))
    records = sorted(read_records(result.out), key=lambda record: record["prompt_index"])
    drawn = [draw_toolsets("terminal_tasks", 4, record["group"], record["sample"]) for record in records]
    assert [tuple(record["toolsets_used"]) for record in records] == [draw.toolsets for draw in drawn]
    assert told == [tuple(dict.fromkeys(name for draw in drawn for name in draw.dropped))]
    assert "web" in told[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distribution": "terminal_taks"}, "did you mean 'terminal_tasks'"),
        ({"distribution": "terminal_tasks", "strict": True}, "without a tool here: web"),
        ({"distribution": "minimal"}, "no toolset with an available tool for 1 of 1 prompts"),
        ({"toolsets": ("terminal", "web"), "strict": True}, "'web' has no tool here"),
    ],
)
async def test_settings_that_cannot_be_are_refused_at_once(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await run_batch(config(tmp_path, {"p": ["done"]}, {"prompt": "p"}, **settings))


async def test_check_files_and_kept_files_of_a_prompt(tmp_path: Path) -> None:
    cheat: list[Step] = [["mkdir tests; echo 'exit 0' > tests/t.sh; echo right > a; echo x > b"], "done"]
    check = {"check": "sh tests/t.sh && [ ! -e b ]", "check_files": {"tests/t.sh": "grep -q right a"}}
    prompts = [{"prompt": "p", "keep": ["a"], **check}, {"prompt": "q", "score_in": "slot", **check}]
    run = config(tmp_path, {"p": cheat, "q": cheat}, *prompts)
    await run_batch(run)
    solved = {record["prompt_index"]: record["solved"] for record in read_records(run.out)}
    assert solved == {0: "solved", 1: "unsolved"}


HERMES = '<tool_call>{"name": "terminal", "arguments": {"command": "ls"}}</tool_call>'


@pytest.mark.parametrize("parser", [None, "mistral"])
@pytest.mark.parametrize(("prompts", "answered"), [(3, 3), (40, 8)])
async def test_calls_that_no_parser_reads_stop_the_run(
    tmp_path: Path, parser: str | None, prompts: int, answered: int
) -> None:
    file = dataset(tmp_path, *({"prompt": f"p{n}", "check": "true"} for n in range(prompts)))
    with endpoint(*[ok({"content": HERMES})] * prompts) as server:
        run = BatchConfig(
            dataset=file, out=tmp_path / "out", model="m", base_url=server.base_url, parser=parser, workers=1
        )
        with pytest.raises(ConfigError, match=r"'hermes'.*batch resume .*/out --parser"):
            await run_batch(run)
        assert len(server.requests) == answered
        records = list(read_records(run.out))
        assert {(record["trainable"], record["solved"]) for record in records} == {(False, "unscored")}
        assert "unread_calls" in str(records[0]["errors"])
        server.answers[:] = [ok({"content": text}) for _ in range(prompts) for text in (HERMES, "done")]
        result = await resume_batch(run.out, parser="hermes")
    assert (result.solved, result.tool_calls, result.unscored) == (prompts, prompts, 0)


async def test_unread_answer_at_the_end_of_a_resumed_run_stops_nothing(tmp_path: Path) -> None:
    """The records that are kept show that the parser is right."""
    file = dataset(tmp_path, *({"prompt": f"p{n}"} for n in range(3)))
    with endpoint(*(ok({"content": text}) for text in ("done", "done", HERMES, HERMES))) as server:
        run = BatchConfig(dataset=file, out=tmp_path / "out", model="m", base_url=server.base_url, workers=1)
        await run_batch(run)
        result = await resume_batch(run.out)
    assert (result.kept, result.complete, result.unscored) == (2, True, 1)


async def test_one_answer_that_is_read_stops_no_run(tmp_path: Path) -> None:
    file = dataset(tmp_path, *({"prompt": f"p{n}"} for n in range(9)))
    texts = ["done", *[HERMES] * 8]
    with endpoint(*(ok({"content": text}) for text in texts)) as server:
        run = BatchConfig(dataset=file, out=tmp_path / "out", model="m", base_url=server.base_url, workers=1)
        result = await run_batch(run)
    assert (result.complete, result.unscored) == (True, 8)


async def test_messages_and_metadata_of_a_prompt(tmp_path: Path) -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
    beginning: list[dict[str, Any]] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what is here?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0", "content": '{"output": "a"}'},
    ]
    prompts = tmp_path / "prompts.json"
    row = {"messages": beginning, "id": 7, "level": 2, "metadata": {"source": "x"}, "check": "[ -e b ]"}
    prompts.write_text(json.dumps([row], indent=2))
    asked = {"tool_calls": [{**call, "function": {"name": "terminal", "arguments": '{"command": "touch b"}'}}]}
    with endpoint(ok(asked), ok({"content": "done"})) as server:
        run = BatchConfig(
            dataset=prompts,
            extra="metadata",
            out=tmp_path / "run",
            model="m",
            base_url=server.base_url,
            system_prompt="-",
        )
        await run_batch(run)
    (record,) = read_records(run.out)
    assert (record["id"], record["solved"], record["tool_calls"]) == ("7", "solved", 1)
    assert json.loads(record["task_metadata"]) == {"source": "x", "level": 2}
    messages = json.loads(record["messages"])
    assert messages[:4] == beginning
    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == 2
    assert record["exportable"]
