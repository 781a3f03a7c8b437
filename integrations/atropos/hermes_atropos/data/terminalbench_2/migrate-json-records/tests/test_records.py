"""The records, read as JSON."""

import json
import pathlib
import sys

WANTED = {
    "a.json": {"id": 17, "name": {"first": "Iben", "last": "Ravn"}, "tags": ["a", "b"], "active": True},
    "b.json": {"id": 7, "name": {"first": None, "last": "Prince"}, "tags": [], "active": False},
    "c.json": {"id": 3, "name": {"first": "Ada", "last": "Moss"}, "tags": ["x y", "z"], "active": False},
}
found = {path.name: json.loads(path.read_text()) for path in pathlib.Path("/app/v2").iterdir()}
broken = pathlib.Path("/app/broken.txt").read_text()
sys.exit(0 if found == WANTED and broken == "d.json\ne.json\n" else 1)
