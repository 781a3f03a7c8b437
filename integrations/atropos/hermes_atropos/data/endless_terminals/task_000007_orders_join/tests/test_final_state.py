"""The totals."""

import json
from pathlib import Path


def test_totals():
    totals = json.loads(Path("/home/user/totals.json").read_text())
    assert totals == {"Moss, Ada": 42.75, "Quist": 0, "Ø. Ravn": 10.1}
