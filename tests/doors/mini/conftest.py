"""mini-swe-agent reads and writes its user's configuration when it is imported: here a temporary one."""

from __future__ import annotations

import os
import tempfile

os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = tempfile.mkdtemp(prefix="mini-swe-agent-")
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_CONFIGURED"] = "true"
