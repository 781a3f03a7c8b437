"""Dockerfiles and Singularity definitions, read and written as each other."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hermes_atropos.image_definitions import (
    BuildStep,
    Definition,
    parse_dockerfile,
    parse_singularity,
    read_definition,
    replace_base,
)
from hermes_atropos.task_images import TaskImages, TaskSlot
from hermes_exec import ConfigError

pytestmark = pytest.mark.anyio


def read_dockerfile(directory: Path, text: str) -> Definition:
    (directory / "Dockerfile").write_text(dedent(text).lstrip("\n"))
    return parse_dockerfile(directory / "Dockerfile")


def definition(directory: Path, text: str) -> Definition:
    (directory / "container.def").write_text(dedent(text).lstrip("\n"))
    return parse_singularity(directory / "container.def")


def test_a_dockerfile_becomes_a_definition(tmp_path: Path) -> None:
    made = read_dockerfile(
        tmp_path,
        """
        # syntax is none
        ARG BASE=ubuntu:22.04
        FROM ${BASE}
        ENV A="x y" B=$HOME/b
        LABEL a=b
        WORKDIR /app
        COPY a.txt b/ ./
        RUN apt-get update && \\
            # a comment
            apt-get install -y jq
        RUN ["touch", "a file"]
        USER root
        CMD ["bash"]
        """,
    )
    assert (made.base, made.workdir, made.plain) == ("ubuntu:22.04", "/app", False)
    assert [step.kind for step in made.steps] == ["env", "env", "run", "copy", "copy", "run", "run"]
    text = made.to_singularity()
    assert text.startswith("Bootstrap: docker\nFrom: ubuntu:22.04\n")
    assert '    export A="x y"\n    export B="$HOME/b"\n' in text
    assert "    a.txt /.hermes-exec-files/3\n" in text
    assert "apt-get update &&" in text
    assert "touch 'a file'" in text
    assert text.index("/.hermes-exec-files/3 ") < text.index("apt-get update")


def test_a_definition_becomes_a_dockerfile(tmp_path: Path) -> None:
    made = definition(
        tmp_path,
        """
        Bootstrap: docker
        From: ubuntu:22.04

        %files
            a.txt /opt/a.txt
        %environment
            export LC_ALL=C.UTF-8
            export PATH=/opt/bin:$PATH
        %post
            # two lines
            mkdir -p /home/user
            echo "it's $HOME" > /home/user/x
        %labels
            Author nobody
        """,
    )
    assert made.steps[0] == BuildStep("copy", "a.txt", "/opt/a.txt")
    lines = made.to_dockerfile().splitlines()
    assert lines[:2] == ["FROM ubuntu:22.04", 'COPY ["a.txt", "/opt/a.txt"]']
    assert lines[2].startswith('RUN ["/bin/sh", "-c", "set -e\\n# two lines\\nmkdir -p /home/user\\necho')
    assert lines[3:] == ['ENV LC_ALL="C.UTF-8"', 'ENV PATH="/opt/bin:$PATH"', "WORKDIR /home/user"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("RUN --mount=type=cache,target=/x true", "options and here-documents"),
        ("RUN cat <<EOF > /x", "options and here-documents"),
        ("COPY --from=other /a /b", "only `COPY source target`"),
        ("COPY *.txt /b/", "variables and patterns"),
        ("ADD https://example.org/x /x", "only `COPY source target`"),
        ("ADD x.tar.gz /x", "unpacking an archive"),
        ("COPY a b", "needs a WORKDIR"),
        ("USER nobody", "only root"),
        ("FROM other", "more than one stage"),
        ('SHELL ["/bin/bash", "-c"]', "this instruction"),
        ("ONBUILD RUN true", "this instruction"),
    ],
)
def test_what_a_dockerfile_says_and_a_definition_cannot_is_refused(line: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        read_dockerfile(tmp_path, f"FROM x\n{line}\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Bootstrap: library\nFrom: x\n", "needs `Bootstrap: docker`"),
        ("Bootstrap: docker\n", "needs `Bootstrap: docker`"),
        ("Bootstrap: docker\nFrom: x\n%setup\n    true\n", "%setup: this section"),
        ("Bootstrap: docker\nFrom: x\n%appinstall a\n    true\n", "this section"),
        ("Bootstrap: docker\nFrom: x\n%post\n    echo {{ A }}\n", "template arguments"),
        ("Bootstrap: docker\nFrom: x\n%environment\n    . /x\n", "only `export NAME=value`"),
        ("Bootstrap: docker\nFrom: x\n%environment\n    export A=$(id)\n", "only `export NAME=value`"),
        ("Bootstrap: docker\nFrom: x\n%files\n    a b c\n", "expected `source /target`"),
    ],
)
def test_what_a_definition_says_and_a_dockerfile_cannot_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        definition(tmp_path, text)


def test_another_base() -> None:
    assert replace_base("# FROM a\nFROM --platform=linux/amd64 a:1 \nRUN x\n", "b") == "# FROM a\nFROM b \nRUN x\n"
    with pytest.raises(ConfigError, match="2 FROM"):
        replace_base("FROM a AS x\nFROM b\n", "c")


async def test_a_plain_task_runs_where_there_are_no_images(tmp_path: Path) -> None:
    read_dockerfile(tmp_path, "FROM ubuntu:22.04\n")
    for backend, image in (("local", None), ("ssh", None), ("singularity", "ubuntu:22.04")):
        assert await TaskImages(backend, default_base="d").resolve(tmp_path) == TaskSlot(image, None)


async def test_a_base_that_is_a_file_of_another_machine(tmp_path: Path) -> None:
    definition(tmp_path, "Bootstrap: localimage\nFrom: ./ubuntu_22.04.sif\n")
    assert (await TaskImages("docker", default_base="ubuntu:22.04").resolve(tmp_path)).image == "ubuntu:22.04"
    assert (await TaskImages("docker", base="own", default_base="ubuntu:22.04").resolve(tmp_path)).image == "own"


async def test_a_definition_is_taken_as_it_is_where_it_can_be(tmp_path: Path) -> None:
    definition(tmp_path, "Bootstrap: docker\nFrom: ubuntu:22.04\n%post\n    mkdir /home/user\n")
    images = TaskImages("singularity", default_base="d", cache=tmp_path / "cache")
    assert await images.resolve(tmp_path) == TaskSlot(str(tmp_path / "container.def"), "/home/user")
    assert images.refusal(tmp_path) == ""
    assert "which the backend 'ssh' does not support" in TaskImages("ssh", default_base="d").refusal(tmp_path)


async def test_what_docker_builds(tmp_path: Path) -> None:
    """The directory as it is, or a copy with another Dockerfile."""
    directory, cache = tmp_path / "directory", tmp_path / "cache"
    directory.mkdir()
    (directory / "Dockerfile").write_text("FROM a AS one\nFROM b\nCOPY --from=one /x /y\n")
    assert await TaskImages("docker", default_base="d").resolve(directory) == TaskSlot(
        f"dockerfile:{directory}", "image"
    )
    (directory / "Dockerfile").unlink()
    definition(directory, "Bootstrap: docker\nFrom: ubuntu:22.04\n%files\n    given /given\n")
    (directory / "given").write_text("it")
    image = (await TaskImages("docker", default_base="d", cache=cache).resolve(directory)).image
    (made,) = cache.glob("*/Dockerfile")
    assert image == f"dockerfile:{made.parent}"
    assert (made.parent / "given").read_text() == "it"
    assert made.read_text() == 'FROM ubuntu:22.04\nCOPY ["given", "/given"]\n'
    assert not (directory / "Dockerfile").exists()
    read_dockerfile(directory, "FROM ubuntu:22.04\nRUN true\n")
    image = (await TaskImages("docker", base="own", default_base="d", cache=cache).resolve(directory)).image or ""
    assert (Path(image.removeprefix("dockerfile:")) / "Dockerfile").read_text() == "FROM own\nRUN true\n"


def test_a_directory_without_a_definition(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a Dockerfile nor a container"):
        read_definition(tmp_path)
