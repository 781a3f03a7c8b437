"""The report, computed anew from the log."""

import hashlib
from collections import Counter
from pathlib import Path

LOG = Path("/home/user/logs/access.log")


def test_log_is_unchanged():
    lines = []
    for n in range(1, 401):
        if n % 37 == 0:
            lines.append(f"10.0.0.{n % 7} GET broken\n")
        else:
            status = 503 if n % 29 == 0 else 200
            lines.append(f"10.0.0.{n % 7} GET /item/{n} {status} {n * (n % 7 + 1)}\n")
    assert hashlib.sha256(LOG.read_bytes()).digest() == hashlib.sha256("".join(lines).encode()).digest()


def test_report():
    fields = [line.split(" ") for line in LOG.read_text().splitlines()]
    good = [f for f in fields if len(f) == 5]
    traffic = Counter()
    for ip, _, _, _, size in good:
        traffic[ip] += int(size)
    errors = sum(int(f[3]) >= 500 for f in good)
    wanted = f"requests={len(good)}\ndamaged={len(fields) - len(good)}\nerrors={errors}\n"
    wanted += f"busiest={traffic.most_common(1)[0][0]}\n"
    assert Path("/home/user/report.txt").read_text() == wanted
