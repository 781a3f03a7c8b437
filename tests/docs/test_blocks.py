"""Every Python block of README and docs runs, as a program of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sshd import Server

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "dev" not in p.relative_to(ROOT).parts),
]
BLOCK = re.compile(r"(?:^<!-- test: (?P<engine>\w+) -->\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
HOST_IN_DOCS = 'hosts="me@gpu1.example.org"'
IMAGE_IN_DOCS = "python:3.12-slim"


def blocks() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            marks = [getattr(pytest.mark, match["engine"])] if match["engine"] else []
            name = f"{page.relative_to(ROOT)}:{line}"
            found.append(pytest.param(match["code"], match["engine"], id=name, marks=marks))
    return found


@pytest.mark.parametrize(("code", "engine"), blocks())
def test_block_runs(code: str, engine: str | None, tmp_path: Path, request: pytest.FixtureRequest) -> None:
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
        folder: Callable[[str], str] = request.getfixturevalue("singularity_image")
        code = code.replace(f"docker://{IMAGE_IN_DOCS}", folder("debian"))
    else:
        assert engine is None, f"no such engine: {engine}"
    program = tmp_path / "block.py"
    program.write_text(code)
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_python_block_is_found() -> None:
    fences = sum(page.read_text("utf-8").count("```python") for page in PAGES)
    assert fences == len(blocks()) > 10


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
