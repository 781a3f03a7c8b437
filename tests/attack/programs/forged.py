"""A process whose arguments or environment are of any size, for the kernel and whoever reads them."""

import ctypes
import os
import struct
import sys
import time
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14
READ, NOTHING_RESERVED = 1, 0x4022
PLACES = {26: 0, 27: 1, 45: 2, 46: 3, 47: 4, 28: 6, 48: 7, 49: 8, 50: 9, 51: 10}
"""Fields of /proc/PID/stat, and where struct prctl_mm_map has them."""
BREAK = 5


def forge(what: str, size: int) -> None:
    """Let arguments ("argv") or environment ("environ") be that many bytes of nothing, which take no memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    start = libc.mmap(None, size, READ, NOTHING_RESERVED, -1, 0)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    words = [0] * 12
    for field, place in PLACES.items():
        words[place] = int(fields[field - 3])
    words[BREAK] = libc.sbrk(0)
    first = 7 if what == "argv" else 9
    words[first : first + 2] = [start, start + size]
    table = ctypes.create_string_buffer(struct.pack("<12QIi", *words, 0, -1))
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(table), ctypes.c_ulong(struct.calcsize("<12QIi")), 0):
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Forge and stay; as a daemon without groups if asked for."""
    what, size, daemon = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["daemon"]
    if daemon:
        if os.fork():
            return
        os.setsid()
        if os.fork():
            return
        if os.geteuid() == 0:
            os.setgroups([])
    forge(what, size)
    print("forged", flush=True)
    time.sleep(600)


main()
