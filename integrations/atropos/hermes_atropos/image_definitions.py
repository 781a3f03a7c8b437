"""Image definitions of tasks: Dockerfiles and Singularity definitions, each parsed and converted to the other.

Only features that both formats have are converted. Anything else raises an error that names it; nothing is dropped.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from hermes_exec import ConfigError

DOCKERFILE, DEFINITION = "Dockerfile", "container.def"
_HOME = "/home/user"
_IGNORED_INSTRUCTIONS = frozenset(
    {"LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER", "VOLUME"}
)
"""Instructions that do not affect commands in a slot."""
_IGNORED_SECTIONS = frozenset({"labels", "help", "runscript", "startscript", "test"})
_STAGING = "/.hermes-exec-files"
_VARIABLE = re.compile(r"(?<!\\)\$")


class BuildStep(NamedTuple):
    """A build step. `run`: shell text; `copy`: a path in the directory and a path in the image; `env`: a name and a
    value.
    """

    kind: Literal["run", "copy", "env"]
    first: str
    second: str = ""


@dataclass(frozen=True)
class Definition:
    """An image definition: the base and the build steps in order. `local_base` means that the base is a file on another
    machine.
    """

    base: str
    steps: tuple[BuildStep, ...] = ()
    workdir: str | None = None
    local_base: bool = False

    @property
    def plain(self) -> bool:
        """Whether the definition is only a base, without steps."""
        return not self.steps

    def with_base(self, base: str) -> Definition:
        """Return a copy with another base."""
        return Definition(base, self.steps, self.workdir)

    def to_dockerfile(self) -> str:
        """Return the definition as a Dockerfile."""
        lines = [f"FROM {self.base}"]
        for step in self.steps:
            if step.kind == "run":
                lines.append(f"RUN {json.dumps(['/bin/sh', '-c', step.first])}")
            elif step.kind == "copy":
                lines.append(f"COPY {json.dumps([step.first, step.second])}")
            else:
                lines.append(f"ENV {step.first}={_quote(step.second)}")
        if self.workdir:
            lines.append(f"WORKDIR {self.workdir}")
        return "\n".join(lines) + "\n"

    def to_singularity(self) -> str:
        """Return the definition as a Singularity definition. Files are staged, so that they are copied in the order of
        the steps.
        """
        bootstrap = "localimage" if self.base.startswith("/") else "docker"
        post, files, environment = ["set -e"], [], []
        for number, step in enumerate(self.steps):
            if step.kind == "copy":
                files.append(f"    {step.first} {_STAGING}/{number}")
                post += _copy(f"{_STAGING}/{number}", step)
            elif step.kind == "env":
                export = f"export {step.first}={_quote(step.second)}"
                post.append(export)
                environment.append(f"    {export}")
            else:
                post.append(f"(set +e\n{step.first}\n)")
        if self.workdir:
            post.append(f"mkdir -p {shlex.quote(self.workdir)}")
        post.append(f"rm -rf {_STAGING}")
        text = [f"Bootstrap: {bootstrap}", f"From: {self.base}", ""]
        for name, lines in (("files", files), ("environment", environment), ("post", post)):
            if lines:
                text += [f"%{name}", *lines, ""]
        return "\n".join(text)


def read_definition(directory: Path, prefer: str = DOCKERFILE) -> Definition:
    """Return the definition in a directory: from the preferred file if it exists, else from the other.

    Raises:
        ConfigError: If there is neither file, or if the file cannot be converted.
    """
    read: Mapping[str, Callable[[Path], Definition]] = {DOCKERFILE: parse_dockerfile, DEFINITION: parse_singularity}
    for name in (prefer, *(other for other in read if other != prefer)):
        if (directory / name).is_file():
            return read[name](directory / name)
    raise ConfigError(f"{directory} has neither a {DOCKERFILE} nor a {DEFINITION}")


def parse_dockerfile(path: Path) -> Definition:
    """Parse a Dockerfile with one stage."""
    base, workdir, steps = "", None, []
    arguments: dict[str, str] = {}
    for word, rest in _instructions(path):
        where = f"{path}: {word} {rest:.60}"
        if word == "ARG":
            name, equals, value = rest.partition("=")
            arguments[name.strip()] = value.strip().strip("\"'") if equals else ""
        elif word == "FROM":
            if base:
                raise ConfigError(f"{where}: more than one stage cannot be converted")
            base = _substitute_arguments(rest, arguments, where)
        elif word == "RUN":
            exports = "".join(f"{name}={shlex.quote(value)}; " for name, value in arguments.items() if value)
            inside = f"cd {shlex.quote(workdir)}; " if workdir else ""
            steps.append(BuildStep("run", exports + inside + _shell(rest, where)))
        elif word in ("COPY", "ADD"):
            steps += _copies(rest, workdir, where)
        elif word == "ENV":
            steps += [BuildStep("env", *pair) for pair in _pairs(rest, where)]
        elif word == "WORKDIR":
            plain = _require_plain(rest.strip().strip("\"'"), where)
            workdir = plain if plain.startswith("/") else f"{(workdir or '').rstrip('/')}/{plain}"
            if steps:
                steps.append(BuildStep("run", f"mkdir -p {shlex.quote(workdir)}"))
        elif word == "USER":
            if rest.split(":")[0] not in ("root", "0"):
                raise ConfigError(f"{where}: only root can be converted")
        elif word not in _IGNORED_INSTRUCTIONS:
            raise ConfigError(f"{where}: this instruction cannot be converted")
    if not base:
        raise ConfigError(f"{path} has no FROM")
    return Definition(base, tuple(steps), workdir)


def parse_singularity(path: Path) -> Definition:
    """Parse a Singularity definition."""
    header, sections = _sections(path)
    bootstrap = header.get("bootstrap", "").lower()
    base = header.get("from", "")
    if not base or bootstrap not in ("docker", "localimage"):
        raise ConfigError(
            f"{path} needs `Bootstrap: docker` (or localimage) and `From:`; it has {bootstrap!r}, {base!r}"
        )
    steps: list[BuildStep] = []
    post: list[BuildStep] = []
    for name, options, body in sections:
        where = f"{path}: %{name}"
        if "{{" in body:
            raise ConfigError(f"{where}: template arguments cannot be converted")
        if name == "files" and not options:
            steps += _files(body, where)
        elif name == "environment":
            steps += _exports(body, where)
        elif name == "post":
            post.append(BuildStep("run", _post(options, body, where)))
        elif name not in _IGNORED_SECTIONS:
            raise ConfigError(f"{where}: this section cannot be converted")
    # The start directory of commands in this dataset, which a definition cannot express.
    workdir = _HOME if any(_HOME in step.first for step in post) else None
    copies = [step for step in steps if step.kind == "copy"]
    variables = [step for step in steps if step.kind == "env"]
    return Definition(base, (*copies, *post, *variables), workdir, local_base=bootstrap == "localimage")


def replace_base(dockerfile: str, base: str) -> str:
    """Return the text of a Dockerfile with another base and no other change.

    Raises:
        ConfigError: If it does not have exactly one FROM.
    """
    replaced, count = re.subn(r"(?im)^(\s*FROM\s+)(?:--\S+\s+)*\S+", lambda match: match.group(1) + base, dockerfile)
    if count != 1:
        raise ConfigError(f"cannot replace the base of a Dockerfile with {count} FROM instructions")
    return replaced


def _instructions(path: Path) -> Iterator[tuple[str, str]]:
    text = path.read_text("utf-8")
    if re.search(r"(?m)^\s*#\s*escape\s*=", text):
        raise ConfigError(f"{path}: another escape character cannot be converted")
    whole = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not whole and not line.strip()):
            continue
        if line.rstrip().endswith("\\"):
            whole += line.rstrip()[:-1] + "\n"
            continue
        word, _, rest = (whole + line).strip().partition(" ")
        whole = ""
        yield word.upper(), rest.strip()


def _substitute_arguments(text: str, arguments: Mapping[str, str], where: str) -> str:
    name = re.sub(
        r"\$\{?(\w+)(?::-([^}]*))?\}?", lambda match: arguments.get(match.group(1)) or match.group(2) or "", text
    )
    words = name.split()
    if len(words) != 1:
        raise ConfigError(f"{where}: only `FROM image` can be converted")
    return words[0]


def _shell(rest: str, where: str) -> str:
    if rest.startswith("--") or re.search(r"<<-?['\"]?\w", rest):
        raise ConfigError(f"{where}: options and here-documents cannot be converted")
    if rest.startswith("["):
        return shlex.join(_list(rest, where))
    return rest.replace("\n", " ")


def _list(rest: str, where: str) -> list[str]:
    try:
        words = json.loads(rest)
    except ValueError as error:
        raise ConfigError(f"{where}: not a list") from error
    return [str(word) for word in words]


def _copies(rest: str, workdir: str | None, where: str) -> list[BuildStep]:
    words = _list(rest, where) if rest.startswith("[") else shlex.split(rest)
    if len(words) < 2 or any(word.startswith(("--", "http:", "https:", "git@")) for word in words):
        raise ConfigError(f"{where}: only `COPY source target` can be converted")
    *sources, target = (_require_plain(word, where) for word in words)
    if any(source.endswith((".tar", ".gz", ".tgz", ".xz", ".bz2")) for source in sources) and "ADD" in where:
        raise ConfigError(f"{where}: unpacking an archive cannot be converted")
    if not target.startswith("/"):
        if workdir is None:
            raise ConfigError(f"{where}: a relative target needs a WORKDIR")
        target = f"{workdir.rstrip('/')}/{target.removeprefix('./')}"
    return [BuildStep("copy", source.removeprefix("/") or ".", target) for source in sources]


def _require_plain(word: str, where: str) -> str:
    if _VARIABLE.search(word) or any(character in word for character in "*?[ "):
        raise ConfigError(f"{where}: variables and patterns cannot be converted")
    return word


def _pairs(rest: str, where: str) -> list[tuple[str, str]]:
    words = shlex.split(rest)
    pairs = [word.split("=", 1) for word in words] if "=" in words[0] else [[words[0], " ".join(words[1:])]]
    if any(len(pair) != 2 for pair in pairs):
        raise ConfigError(f"{where}: only `ENV name=value` can be converted")
    return [(name, value) for name, value in pairs]


def _sections(path: Path) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    header: dict[str, str] = {}
    sections: list[tuple[str, str, str]] = []
    body: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        begins = re.match(r"%(\w+)\s*(.*)$", line)
        if begins:
            if sections:
                sections[-1] = (*sections[-1][:2], "\n".join(body))
            sections.append((begins.group(1).lower(), begins.group(2).strip(), ""))
            body = []
        elif sections:
            body.append(line)
        elif ":" in line and not line.lstrip().startswith("#"):
            name, _, value = line.partition(":")
            header[name.strip().lower()] = value.strip()
    if sections:
        sections[-1] = (*sections[-1][:2], "\n".join(body))
    return header, sections


def _files(body: str, where: str) -> list[BuildStep]:
    steps = []
    for line in body.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            if len(words) > 2 or not words[-1].startswith("/"):
                raise ConfigError(f"{where}: {line.strip():.60}: expected `source /target`")
            steps.append(BuildStep("copy", _require_plain(words[0], where).removeprefix("./"), words[-1]))
    return steps


def _exports(body: str, where: str) -> list[BuildStep]:
    steps = []
    for line in body.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        name, equals, value = words[-1].partition("=")
        command = "$(" in value or "`" in value
        if len(words) > 2 or (len(words) == 2 and words[0] != "export") or not equals or command:
            raise ConfigError(f"{where}: {line.strip():.60}: only `export NAME=value` can be converted")
        steps.append(BuildStep("env", name, value))
    return steps


def _post(options: str, body: str, where: str) -> str:
    words = options.split()
    if words and (len(words) != 2 or words[0] != "-c"):
        raise ConfigError(f"{where} {options}: only `-c shell` can be converted")
    text = "\n".join(line.removeprefix("    ") for line in body.splitlines()).strip("\n")
    return f"exec {words[1]} -ec {shlex.quote(text)}" if words else f"set -e\n{text}"


def _copy(staged: str, step: BuildStep) -> list[str]:
    """Return shell lines that do the same as COPY: a directory's content is copied, and a file is copied into the
    target if that is a directory or ends in `/`.
    """
    target = shlex.quote(step.second)
    into = "true" if step.second.endswith("/") else f"[ -d {target} ]"
    name = shlex.quote(step.first.rpartition("/")[2])
    parent = shlex.quote(step.second.rpartition("/")[0] or "/")
    return [
        f"if [ -d {staged} ]; then mkdir -p {target}; cp -a {staged}/. {target}/",
        f"elif {into}; then mkdir -p {target}; cp -a {staged} {target}/{name}",
        f"else mkdir -p {parent}; cp -a {staged} {target}; fi",
    ]


def _quote(value: str) -> str:
    """Return a value in double quotes. `$NAME` is still expanded, as in both formats."""
    escaped = re.sub(r'([\\"`])', r"\\\1", value)
    return f'"{escaped}"'
