"""Every Python block of README and docs runs, as a program of its own. Those of docs/doors run in tests/doors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import require_engine
from tests.e2e.atropos.inference_server import PolicyServer, call, load, make_tokenizer, serving
from tests.e2e.atropos.trainer import flags
from tests.support.nomad_agent import Agent
from tests.support.sshd import Server

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "dev" not in p.relative_to(ROOT).parts),
]
RUN_HERE = [page for page in PAGES if page.parent.name != "doors"]
BLOCK = re.compile(r"(?:^<!-- test: (?P<engine>\w+) -->\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
HOST_IN_DOCS = 'hosts="me@gpu1.example.org"'
IMAGE_IN_DOCS = "python:3.12-slim"
ADDRESS_IN_DOCS = 'address="https://nomad.example.org:4646"'


def blocks() -> list[object]:
    found: list[object] = []
    for page in RUN_HERE:
        text = page.read_text("utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            engine = match["engine"]
            marks = [getattr(pytest.mark, engine)] if engine not in (None, "environment") else []
            name = f"{page.relative_to(ROOT)}:{line}"
            found.append(pytest.param(match["code"], engine, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("code", "engine"), blocks())
def test_block_runs(code: str, engine: str | None, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if engine == "environment":
        check_environment(code, tmp_path)
        return
    if engine == "docker":
        assert IMAGE_IN_DOCS in code
        docker_image: Callable[[str], str] = request.getfixturevalue("docker_image")
        code = code.replace(IMAGE_IN_DOCS, docker_image("debian"))
    elif engine == "ssh":
        assert HOST_IN_DOCS in code
        server: Server = request.getfixturevalue("ssh_server")
        code = code.replace(HOST_IN_DOCS, f"**{server.options()!r}")
    elif engine == "singularity":
        assert IMAGE_IN_DOCS in code
        directory: Callable[[str], str] = request.getfixturevalue("singularity_image")
        code = code.replace(f"docker://{IMAGE_IN_DOCS}", directory("debian"))
    elif engine == "modal":
        assert IMAGE_IN_DOCS in code
        request.getfixturevalue("modal_server")
        images: Callable[[str], str] = request.getfixturevalue("docker_image")
        code = code.replace(IMAGE_IN_DOCS, images("debian"))
    elif engine == "nomad":
        agent: Agent = request.getfixturevalue("nomad_agent")
        image: Callable[[str], str] = request.getfixturevalue("docker_image")
        for theirs, ours in ((ADDRESS_IN_DOCS, f"**{agent.options()!r}"), (IMAGE_IN_DOCS, image("debian"))):
            assert theirs in code
            code = code.replace(theirs, ours)
    elif engine == "chromium":
        require_engine("chromium")
    else:
        assert engine is None, f"no such engine: {engine}"
    program = tmp_path / "block.py"
    program.write_text(code)
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def check_environment(code: str, directory: Path) -> None:
    """An environment of the docs fills a group, in which the model does what it is asked."""
    (directory / "block.py").write_text(code)
    made = make_tokenizer(directory / "tokenizer")

    def policy(prompt: str) -> str:
        return "Done." if "<|im_start|>tool" in prompt else call("terminal", command="sort -o names.txt names.txt")

    with serving(PolicyServer(load(made), policy)) as server:
        command = [sys.executable, "block.py", "process", *flags(made, server.url, "--env.total_steps", "1")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=directory)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "rewards 1 1" in done.stderr
    assert (directory / "data" / "sort.jsonl").stat().st_size > 1000


def test_every_python_block_is_found() -> None:
    fences = sum(page.read_text("utf-8").count("```python") for page in RUN_HERE)
    assert fences == len(blocks()) > 10


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
