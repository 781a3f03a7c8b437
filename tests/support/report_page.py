"""Reads `report.html` of a batch run without a browser: the page itself, its list, and its conversations."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

_DATA = re.compile(r'<script type="text/plain" id="(\w+)">([A-Za-z0-9+/=]*)</script>\n')


class ReportPage(NamedTuple):
    """The parts of a report: the page without its data, the rows of the list, and the HTML of each conversation."""

    page: str
    rows: list[list[Any]]
    transcripts: list[str]

    @property
    def text(self) -> str:
        """All parts."""
        return self.page + json.dumps(self.rows, ensure_ascii=False) + "".join(self.transcripts)


def read_report(path: Path) -> ReportPage:
    """Return the parts of a report."""
    source = path.read_text("utf-8")
    data = {name: zlib.decompress(base64.b64decode(packed)).decode() for name, packed in _DATA.findall(source)}
    rows = json.loads(data.pop("rows"))
    assert [*data] == [f"t{number}" for number in range(len(data))]
    return ReportPage(_DATA.sub("", source), rows, [*data.values()])
