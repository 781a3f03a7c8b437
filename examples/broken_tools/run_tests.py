"""Run all tests, and print the number of failing tests of each module as JSON."""

import io
import json
import unittest
from collections import Counter
from pathlib import Path

result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.TestLoader().discover("."))
failures = Counter(test.id().split(".")[0].removeprefix("test_") for test, _ in result.failures + result.errors)
modules = sorted(path.stem.removeprefix("test_") for path in Path().glob("test_*.py"))
print(json.dumps({module: failures[module] for module in modules}))
