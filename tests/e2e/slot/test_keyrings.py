"""The kernel keeps a user's keys after its last process has ended; the next tenant of a slot never sees them."""

from __future__ import annotations

import os

import pytest

from hermes_exec import SandboxPool

CALLS = """
import ctypes, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
LINK, SEARCH, SESSION = 8, 10, -3
for ring in (-4, -5):
    if sys.argv[1] == "put":
        print(libc.syscall(add_key, b"user", b"mail", b"secret", 6, ring) > 0)
    else:
        libc.syscall(keyctl, LINK, ring, SESSION, 0)
        print(libc.syscall(keyctl, SEARCH, ring, b"user", b"mail", 0) > 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's slots have a user namespace for each holder")
@pytest.mark.anyio
async def test_keys_do_not_reach_the_next_tenant() -> None:
    async with SandboxPool("local", slots_per_sandbox=1, files={"keys.py": CALLS.encode()}) as pool:
        async with pool.slot() as slot:
            identity = slot.id
            put = await slot.run("python3 keys.py put; python3 keys.py find")
            if "True" not in put.stdout:
                pytest.skip("this kernel keeps no keys")
            assert put.stdout == "True\n" * 4
        async with pool.slot() as slot:
            assert slot.id == identity
            assert (await slot.run("python3 keys.py find")).stdout == "False\n" * 2
