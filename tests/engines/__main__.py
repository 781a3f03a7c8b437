"""Runs a command while a backend is there: see the package."""

from __future__ import annotations

import sys

from tests.engines import main

sys.exit(main())
