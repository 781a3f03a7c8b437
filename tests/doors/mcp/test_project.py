"""The option --dir: the project in the slot, and results that are copied out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from mcp import Client

from hermes_mcp.project import _replace
from tests.doors.mcp.conftest import Mode, StdioClient, text_of


@pytest.fixture
def mode() -> Mode:
    """One protocol era: nothing here depends on it."""
    return "auto"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a file, a directory, Git's files and a link that leads out."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / ".git" / "config").write_text("user's")
    (project / "src" / "main.py").write_text("print('old')\n")
    (tmp_path / "outside").mkdir()
    (project / "linked").symlink_to(tmp_path / "outside")
    return project


async def run(client: Client, command: str) -> dict[str, object]:
    result = await client.call_tool("terminal", {"command": command})
    assert not result.is_error, result
    data: dict[str, object] = json.loads(text_of(result))
    return data


async def test_project_is_copied_in_and_results_out(stdio_client: StdioClient, project: Path) -> None:
    async with stdio_client("--dir", str(project)) as client:
        assert "copy_to_project" in [tool.name for tool in (await client.list_tools()).tools]
        assert (await run(client, "python3 src/main.py"))["output"] == "old\n"
        await run(
            client,
            "echo \"print('new')\" > src/main.py; mkdir -p out/deep; echo x > out/deep/x; chmod +x out/deep/x; cd /",
        )
        assert (project / "src" / "main.py").read_text() == "print('old')\n"
        copied = await client.call_tool("copy_to_project", {"paths": ["src/main.py", "out"]})
        assert json.loads(text_of(copied)) == {"count": 2, "files": ["src/main.py", "out/deep/x"]}
    assert (project / "src" / "main.py").read_text() == "print('new')\n"
    assert os.access(project / "out" / "deep" / "x", os.X_OK)


async def test_copies_stay_in_the_project_and_out_of_git(stdio_client: StdioClient, project: Path) -> None:
    async with stdio_client("--dir", str(project)) as client:
        await run(
            client,
            "echo evil > .git/config; mkdir -p src/.GIT; echo evil > src/.GIT/config; ln -s /etc/passwd src/link",
        )
        await run(
            client, "rm -f linked; mkdir linked; echo evil > linked/file; rm src/main.py; mkfifo pipe; echo kept > kept"
        )
        copied = json.loads(text_of(await client.call_tool("copy_to_project", {"paths": ["."]})))
        assert copied["files"] == ["kept"]
        assert any(entry.startswith("linked/file") for entry in copied["refused"])
        for path in ("../outside", "/etc/passwd", ".git/config", "src/.Git"):
            refused = await client.call_tool("copy_to_project", {"paths": [path]})
            assert refused.is_error
            assert json.loads(text_of(refused))["error_kind"] == "bad_value"
    assert (project / ".git" / "config").read_text() == "user's"
    assert list((project.parent / "outside").iterdir()) == []
    assert sorted(path.name for path in (project / "src").iterdir()) == ["main.py"]


async def test_missing_path_is_an_error(stdio_client: StdioClient, project: Path) -> None:
    async with stdio_client("--dir", str(project)) as client:
        result = await client.call_tool("copy_to_project", {"paths": ["missing"]})
        assert result.is_error
        assert "missing" in text_of(result)


async def test_paths_that_cannot_be_copied_do_not_hide_those_that_were(
    stdio_client: StdioClient, project: Path
) -> None:
    async with stdio_client("--dir", str(project)) as client:
        await run(client, "echo one > one; echo two > two; mkfifo pipe")
        result = await client.call_tool("copy_to_project", {"paths": ["one", "missing", "pipe", "two"]})
        assert not result.is_error
        copied = json.loads(text_of(result))
        assert copied["files"] == ["one", "two"]
        assert copied["refused"][0] == "missing: No such file or directory"
        assert copied["refused"][1].startswith("pipe: ")


async def test_project_that_is_gone_is_an_error_with_its_reason(stdio_client: StdioClient, project: Path) -> None:
    async with stdio_client("--dir", str(project)) as client:
        await run(client, "echo one > one")
        await anyio.Path(project).rename(project.with_name("elsewhere"))
        result = await client.call_tool("copy_to_project", {"paths": ["one"]})
    assert result.is_error
    assert "one: not written to the project: No such file or directory" in json.loads(text_of(result))["error"]


async def test_project_that_cannot_be_read_is_named_with_a_remedy(stdio_client: StdioClient, project: Path) -> None:
    async with stdio_client("--dir", str(project)) as client:
        await anyio.Path(project).rename(project.with_name("elsewhere"))
        result = await client.call_tool("terminal", {"command": "true"})
    assert result.is_error
    assert f"'{project}'; make it readable, or leave it out" in text_of(result)


def test_unfinished_copy_is_removed(tmp_path: Path) -> None:
    (tmp_path / "source").write_text("new")
    (tmp_path / "project" / "source").mkdir(parents=True)  # as when it takes the place of the file meanwhile
    with pytest.raises(IsADirectoryError):
        _replace(tmp_path / "project" / "source", tmp_path / "source")
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["source"]


@pytest.mark.docker
async def test_project_is_bound_on_docker(
    stdio_client: StdioClient, project: Path, docker_image: Callable[[str], str]
) -> None:
    async with stdio_client("-b", "docker", "-i", docker_image("debian"), "--dir", str(project)) as client:
        assert "copy_to_project" not in [tool.name for tool in (await client.list_tools()).tools]
        assert (await run(client, "pwd; cat src/main.py; echo new > result"))["output"] == "/project\nprint('old')\n"
        assert (await run(client, "echo $GIT_CONFIG_VALUE_0"))["output"] == "/project\n"
        assert (project / "result").read_text() == "new\n"
    assert sorted(os.listdir(project)) == [".git", "linked", "result", "src"]
