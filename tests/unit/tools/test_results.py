"""The JSON text of results."""

from __future__ import annotations

import json
import math

from hermes_exec.tools.call.results import to_json


def test_numbers_that_json_does_not_have_are_text() -> None:
    text = to_json(
        {"loss": math.nan, "bounds": [-math.inf, math.inf], "name": "ünï", "half": "\ud83d", "byte": "\udcff"}
    )
    assert '"byte": "\\udcff"' in text
    assert json.loads(text) == {
        "loss": "NaN",
        "bounds": ["-Infinity", "Infinity"],
        "name": "ünï",
        "half": "?",
        "byte": "\udcff",
    }
