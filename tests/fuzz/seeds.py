"""Valid input of each decoder, from which fuzzing begins; `python -m tests.fuzz.seeds` writes it into the corpus."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

from hermes_exec.channel.frames import MORE, FrameType, encode, encode_position, encode_positioned

KEPT = {"total": 3, "head": 2, "tail": 1}
NONE = {"total": 0, "head": 0, "tail": 0}
USAGE = {"user_s": 0.01, "system_s": 0.02, "max_rss_bytes": 1 << 20}
RECEIPT = {"found": 2, "killed": 2, "left": 0, "rounds": 1, "handles": ["pid namespace"], "duration_s": 0.5}
EXIT = {
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "canceled": False,
    "oom_killed": False,
    "duration_s": 0.1,
    "usage": USAGE,
    "stdout": KEPT,
    "stderr": KEPT,
    "merged": None,
    "segments": [[1, 2], [2, 3], [1, 1]],
    "spill_path": {"b64": "L3RtcC//"},
    "killed": RECEIPT,
    "started": True,
    "reason": None,
    "cwd": "/w",
    "state_lost": None,
}
ISOLATION = {
    "level": "namespaces",
    "filesystem": "private",
    "processes": "own",
    "users": "own uid",
    "network": "shared",
    "limits": {"pids": "cgroup"},
    "price_ms": 1.5,
}
SLOT = {
    "workspace": "/w",
    "home": "/h",
    "tmp": "/t",
    "uid": 7,
    "gid": 7,
    "user_name": "u",
    "shell": "bash",
    "shells": {"bash": "/bin/bash"},
    "loopback": "sandbox",
    "session": {"shell": "bash", "keeps": ["cwd"]},
    "isolation": ISOLATION,
}
PROCESS = {
    "pid": 5,
    "argv": ["sh", {"b64": "/w=="}],
    "started_at": 1.5e9,
    "rss_bytes": 4096,
    "request_id": 3,
    "state": "S",
}
LISTED = {
    "process": "p1",
    "pid": 5,
    "command": "sleep 1",
    "tag": "t",
    "started_at": 1.5e9,
    "ended_at": None,
    "exit": EXIT,
    "stdout_bytes": 3,
    "stderr_bytes": 0,
    "pty": False,
}
FILE = {
    "path": "/w/a",
    "name": "a",
    "type": "file",
    "size": 3,
    "mode": 0o644,
    "uid": 7,
    "gid": 7,
    "mtime": 1.5e9,
    "links": 1,
    "id": "fd01:7",
    "target": None,
}
FOUND = {
    "matches": [{"path": "a", "line": 1, "column": 2, "text": "x", "before": ["w"], "after": ["y"]}],
    "files": [{"path": "a", "count": 1, "mtime": 1.5e9}],
    "total": 1,
    "total_files": 1,
    "truncated": False,
    "skipped": [{"reason": "binary", "count": 1, "paths": ["b"]}],
    "errors": [],
}
ERROR = {
    "kind": "os",
    "message": "no such file",
    "errno": "ENOENT",
    "path": "a",
    "detail": {"oom": True, "exclusive": False},
}
READY = {"boot_id": "boot-1", "input_window": 131072, "os": "linux", "isolation": {"highest": "uid", "reasons": {}}}
ANSWERS: dict[str, dict[str, Any]] = {
    "exit": EXIT,
    "receipt": RECEIPT,
    "isolation": ISOLATION,
    "slot": SLOT,
    "process": PROCESS,
    "listed": LISTED,
    "file": FILE,
    "found": FOUND,
    "error": ERROR,
    "ready": READY,
    "list": {"processes": [PROCESS], "paths": ["a", "b"]},
}


def as_json(value: object) -> bytes:
    """As a runner writes it."""
    return json.dumps(value, separators=(",", ":")).encode()


def talk() -> bytes:
    """All that a conversation may hear, its stream broken once."""
    return b"".join(
        [
            encode_positioned(FrameType.EVENT, 1, 0, 0, b'{"event":"started"}'),
            encode_positioned(FrameType.DATA, 1, 1, 19, b"abc"),
            encode_position(FrameType.CREDIT, 1, 5),
            encode_position(FrameType.RESUME, 1, 22),
            encode(FrameType.RESUMED, 1, b"\1" + bytes(8)),
            encode_positioned(FrameType.DATA, 1, 2, 22, b"xyz"),
            encode_positioned(FrameType.END, 1, 5, 25),
            encode(FrameType.RESPONSE, 1, b'{"result":', flags=MORE),
            encode(FrameType.RESPONSE, 1, as_json(EXIT) + b"}"),
        ]
    )


def greeting() -> bytes:
    """What a runner says to a driver that claims it."""
    welcome = {"version": 1, "boot_id": "boot-1", "nonce": "00" * 16}
    return encode(FrameType.WELCOME, payload=as_json(welcome)) + encode(FrameType.READY, payload=as_json(READY))


def proven() -> bytes:
    """What it says to one that it knows, with a proof."""
    welcome = {"version": 1, "boot_id": "boot-1", "nonce": "00" * 16, "proof": "00" * 32}
    return encode(FrameType.KEEPALIVE) + encode(FrameType.WELCOME, payload=as_json(welcome))


def tree(form: int) -> bytes:
    """Every kind of entry, with names that need more than a header."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, kind, link in (
            ("d", tarfile.DIRTYPE, ""),
            ("d/f", tarfile.REGTYPE, ""),
            ("d/l", tarfile.SYMTYPE, "f"),
            ("h", tarfile.LNKTYPE, "d/f"),
            ("n" * 120, tarfile.REGTYPE, ""),
            ("long", tarfile.SYMTYPE, "m" * 120),
            ("p", tarfile.FIFOTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mtime, info.size = kind, link, 1_200_000_000, 3 * (kind == tarfile.REGTYPE)
            info.pax_headers = {"mtime": "1200000000.5", "comment": "x"}
            archive.addfile(info, io.BytesIO(b"abc"))
    return out.getvalue()


def docker(*pieces: tuple[int, bytes]) -> bytes:
    """A Docker exec's output."""
    return b"".join(struct.pack(">BxxxI", kind, len(data)) + data for kind, data in pieces)


def nomad(*messages: object) -> bytes:
    """A Nomad exec's output: text frames of a server."""
    return b"".join(b"\x81" + bytes([len(text)]) + text for text in map(as_json, messages))


TRACE = (
    {"trace": 1, "began_at": 1.5e9},
    {"t": 0.1, "event": "Acquired", "slot": "s0"},
    {"t": 0.1, "sandbox": "b", "connected": True, "handshake_s": 0.1},
    {"t": 0.2, "sandbox": "b", "begun": 1, "method": "exec.run"},
    {"t": 0.3, "sandbox": "b", "dir": ">", "type": "REQUEST", "id": 1, "bytes": 9, "method": "exec.run", "slot": "s0"},
    {"t": 0.4, "sandbox": "b", "dir": "<", "type": "DATA", "id": 1, "channel": 1, "bytes": 9},
    {"t": 0.5, "sandbox": "b", "dir": "<", "type": "RESPONSE", "id": 1, "bytes": 9, "exec_s": 0.1},
    {"t": 0.6, "sandbox": "b", "begun": 2, "method": "sandbox.info"},
    {"t": 0.7, "sandbox": "b", "lost": "ChannelLost"},
)


QWEN = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="a" string="true">{}</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)
HERMES = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
MODEL_ANSWERS = {
    **{name: form.format(f"x {form.format('y')} z") for name, form in (("qwen", QWEN), ("glm", GLM), ("dsml", DSML))},
    "single-quotes": HERMES.replace("1", HERMES).replace('"', "'", 4),
    "mistral": '[TOOL_CALLS]f[ARGS]{"a": "say "[TOOL_CALLS]f[ARGS]{} "}',
    "kimi": "<think>x<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    "fence": f"So:\n```\n{HERMES}\n```\n`{HERMES}`\n",
    "invented": f"{HERMES}\n<tool_response>1</tool_response>{HERMES}<|im_start|>user",
    "thinking": f"<think>a</think>b<think>c {HERMES}",
}

_USER = {"role": "user", "content": [{"type": "text", "text": "a"}]}
_CALL = {"id": "c", "type": "function", "function": {"name": "t", "arguments": "{}"}}
_RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a"}]}
_USE = {"type": "tool_use", "id": "c", "name": "t", "input": {"a": [1]}}
_ITEM_CALL = {"type": "function_call", "call_id": "c", "name": "t", "namespace": "n", "arguments": "{}"}
_FUNCTION = {"type": "function", "name": "t", "parameters": {}}
MODEL_REQUESTS: dict[str, dict[str, object]] = {
    "chat": {
        "messages": [_USER, {"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "tool_call_id": "c"}],
        "tools": [{"type": "function", "function": {"name": "t", "description": "", "parameters": {}}}],
        "stop": ["a"],
        "response_format": {"type": "text"},
    },
    "anthropic": {
        "messages": [_USER, {"role": "assistant", "content": [_USE]}, {"role": "user", "content": [_RESULT]}],
        "system": [{"type": "text", "text": "a"}],
        "tools": [{"name": "t", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
    },
    "responses": {
        "input": [_USER, _ITEM_CALL, {"type": "function_call_output", "call_id": "c", "output": "a"}],
        "instructions": "a",
        "tools": [{"type": "namespace", "name": "n", "tools": [_FUNCTION]}],
    },
}


SEEDS: dict[str, dict[str, bytes]] = {
    "model_answer": {name: text.encode() for name, text in MODEL_ANSWERS.items()},
    "model_request": {name: as_json({"model": "m", **body}) for name, body in MODEL_REQUESTS.items()},
    "frames": {"talk": b"\7" + talk(), "greeting": b"\0" + greeting()},
    "messages": {name: as_json(value) for name, value in ANSWERS.items()},
    "handshake": {
        "claim": b"\0" + greeting(),
        "known": b"\xff" + proven(),
        "refused": b"\0" + encode(FrameType.GOODBYE, payload=b'{"reason":"denied","message":"claimed"}'),
    },
    "conversation": {"talk": talk(), "unknown": talk().replace(b"\1" + bytes(8), bytes(9))},
    "answers": {name: as_json(value) for name, value in ANSWERS.items()},
    "archive": {"gnu": tree(tarfile.GNU_FORMAT), "pax": tree(tarfile.PAX_FORMAT)},
    "docker": {"two": b"\5" + docker((1, b"abc"), (2, b"err"), (1, b"")), "many": b"\0" + docker(*[(1, b"x")] * 9)},
    "nomad": {
        "ended": b"\5"
        + nomad({"stdout": {"data": "YWJj"}}, {"stderr": {"data": "ZQ=="}}, {"exited": True, "result": {}}),
        "closed": b"\0" + nomad({"stdout": {"data": "YWJj"}}, {"stdout": {"close": True}}) + b"\x88\5\3\xf0not",
    },
    "trace": {"calls": b"".join(as_json(line) + b"\n" for line in TRACE)},
}


def main() -> None:
    """Write the seeds."""
    for decoder, seeds in SEEDS.items():
        directory = Path(__file__).parent / "corpus" / decoder
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (directory / f"seed-{name}").write_bytes(data)


if __name__ == "__main__":
    main()
