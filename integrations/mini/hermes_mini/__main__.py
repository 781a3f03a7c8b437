"""`python -m hermes_mini swebench …` is `mini-extra swebench …` with slots in place of its Docker.

Its benchmarks set the image of each instance for their own environment classes only. This command gives the name
`docker` to `hermes_mini.Environment`, in this process alone.
"""

from __future__ import annotations

from minisweagent import environments
from minisweagent.run.utilities import mini_extra

if __name__ == "__main__":
    environments._ENVIRONMENT_MAPPING["docker"] = "hermes_mini.Environment"
    mini_extra.main()  # type: ignore[no-untyped-call, unused-ignore]
