"""Commands of a session, one after the other, do what they do in one shell that gets them all."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Callable

import pytest

from hermes_exec import SandboxPool, Slot

pytestmark = pytest.mark.anyio
COMMANDS = 25
NAMES = ("a", "b", "c", "x_y", "E")
FUNCTIONS = ("f", "g", "ls2")
BUILTINS = (
    "alias",
    "builtin",
    "cd",
    "declare",
    "enable",
    "export",
    "local",
    "printf",
    "pwd",
    "set",
    "shopt",
    "umask",
    "unalias",
)
VALUES = (
    "1",
    "'two words'",
    "''",
    '"q\'uote"',
    "'new\nline'",
    "'*'",
    "'~'",
    "'$HOME'",
    "'é'",
    "'\\'",
    "'a=b'",
    "'#x'",
    "-n",
    "'`x`'",
    "'('",
)
OF_ALL = (
    "{n}={v}",
    "export {n}={v}",
    "export {n}",
    "unset {n}",
    "{n}=$((1+2))",
    ": ${{{n}:={v}}}",
    "for {n} in 1 2 3; do :; done",
    "alias al='echo {n}'",
    "alias al='echo \"q\" {n}'",
    "unalias al",
    "al x",
    "set -f",
    "set +f",
    "set -C",
    "set +C",
    "set -a",
    "set +a",
    "IFS=:",
    "IFS=,",
    "IFS=",
    "unset IFS",
    "cd /tmp",
    "cd /usr",
    "cd ..",
    "cd -",
    "cd",
    "mkdir -p 'we ird'; cd 'we ird'",
    'mkdir -p "q\'u"; cd "q\'u"',
    "CDPATH=/usr",
    "unset CDPATH",
    "umask 077",
    "umask 022",
    "umask",
    "pwd",
    "PS4='++ '",
    "HOME=/tmp",
    "LC_ALL=C",
    "read x_y <<'EOF'\nr  e a d\nEOF",
    "false",
    "(exit 3)",
    "true & wait",
    "trap 'echo u' USR1; kill -USR1 $$",
    'echo "${n}"',
    "echo ${n}",
    "sh -c 'echo ${n}'",
    "env | grep -E '^(a|b|c|x_y|E)=' | sort",
    "printf '%s|' \"$IFS\"",
)
OF_BASH = (
    '{f}() {{ echo {v} "$1" "${{{n}-unset}}"; }}',
    "{f}() {{ local {n}={v}; {m}={v}; echo in; }}",
    "{f} arg 2>&1",
    "unset -f {f}",
    "{n}+={v}",
    "declare -i {n}=3+4",
    "declare -l {n}=ABC",
    "declare -u {n}=abc",
    "declare -x {n}",
    "declare -t {n}",
    "declare +x {n}",
    "declare +i {n}",
    "declare -a {n}=({v} {v})",
    "declare -A E2=([{v}k]={v})",
    "{n}[5]={v}",
    "{n}+=({v})",
    "unset '{n}[0]'",
    "declare -n ref={n}",
    "unset -n ref",
    "{f}() {{ declare -g {n}={v}; }}",
    "{f}() ( cd /tmp; echo sub )",
    "export -f {f}",
    "declare -ft {f}",
    "set -T",
    "set +B",
    "set -B",
    "set +h",
    "set -o pipefail",
    "set +o pipefail",
    *(
        f"shopt {way} {name}"
        for name in ("nullglob", "extglob", "dotglob", "nocasematch", "lastpipe", "xpg_echo")
        for way in ("-s", "-u")
    ),
    "shopt -s localvar_inherit",
    "GLOBIGNORE=x",
    "unset GLOBIGNORE",
    "enable -n echo",
    "enable echo",
    "printf -v b '%03d' 5",
    "mapfile -t a <<< $'l1\\nl2'",
    "BASH_ALIASES[zz]='echo zz'",
    "zz",
    "let x_y++",
    "bash -c 'echo ${n}; {f}' 2>&1",
    "echo {{1..3}} *",
    'echo "${{{n}[@]}}"',
    "echo $ref",
    "{f}() {{ coproc true; wait; coproc {{ true; }}; wait; }}",
    *(f"alias '{word}'" for word in ("{{={{ :;", "}}=}}")),
    "unalias '{{' 2>&1",
    *(f'{name}() {{{{ command {name} "$@"; }}}}' for name in BUILTINS),
    *(f"export -f {name}" for name in BUILTINS),
    f"unset -f {' '.join(BUILTINS)}",
    "shopt -p inherit_errexit",
)
STATE_OF_ALL = "alias | grep -v __hx | sort; set +o | sort; umask; pwd; export -p | grep -E ' (a|b|c|x_y|E)='"
STATE_OF_BASH = (
    f"declare -p {' '.join(NAMES)} E2 ref IFS PS4 HOME CDPATH GLOBIGNORE 2>/dev/null; "
    f"declare -f {' '.join(FUNCTIONS)}; declare -Fx; {STATE_OF_ALL}; shopt"
)
MARK = "--- end of output ---"


def some(seed: int, of: tuple[str, ...]) -> list[str]:
    """Commands that such a seed gives."""
    draw = random.Random(seed)
    return [
        draw.choice(of).format(
            n=draw.choice(NAMES), m=draw.choice(NAMES), f=draw.choice(FUNCTIONS), v=draw.choice(VALUES)
        )
        for _ in range(COMMANDS)
    ]


def plain(output: str) -> str:
    """Without what tells where a shell read the command."""
    return re.sub(r"(?m)^.*?(?:line \d+: )+", "", output).strip()


async def of_a_session(slot: Slot, commands: list[str]) -> list[tuple[str, int]]:
    session = slot.session()
    results = [await session.run(command, merge_stderr=True) for command in commands]
    assert [result.state_lost for result in results] == [None] * len(commands)
    return [(plain(result.stdout), result.exit_code) for result in results]


async def of_one_shell(slot: Slot, shell: str, commands: list[str]) -> list[tuple[str, int]]:
    steps = [f'eval {shlex.quote(command)} 2>&1\necho "{MARK}$?"\n' for command in commands]
    first = "shopt -s expand_aliases\n" if shell == "bash" else ""
    done = await slot.run([shell, "-c", first + "".join(steps)], timeout_s=60)
    *parts, _ = re.split(rf"{MARK}(\d+)\n", done.stdout)
    return [(plain(parts[i]), int(parts[i + 1])) for i in range(0, len(parts), 2)]


async def compared(pool: SandboxPool, shell: str, seed: int, of: tuple[str, ...], state: str) -> int:
    """How many there were to compare: some errors end the one shell, and only the command of a session."""
    commands = [*some(seed, of), state]
    async with pool.slot() as slot:
        session = await of_a_session(slot, commands)
    async with pool.slot() as slot:
        one = await of_one_shell(slot, shell, commands)
    for number, (command, ours, theirs) in enumerate(zip(commands, session, one, strict=False)):
        assert ours == theirs, (seed, command, commands[:number])
    return len(one)


SEEDS = range(12)


async def test_bash() -> None:
    async with SandboxPool("local") as pool:
        found = [await compared(pool, "bash", seed, OF_ALL + OF_BASH, STATE_OF_BASH) for seed in SEEDS]
    assert sum(found) > len(SEEDS) * COMMANDS / 2


@pytest.mark.whole
@pytest.mark.docker
async def test_busybox(docker_image: Callable[[str], str]) -> None:
    async with SandboxPool("docker", image=docker_image("busybox")) as pool:
        found = [await compared(pool, "sh", seed, OF_ALL, STATE_OF_ALL) for seed in SEEDS]
    assert sum(found) > len(SEEDS) * COMMANDS / 2
