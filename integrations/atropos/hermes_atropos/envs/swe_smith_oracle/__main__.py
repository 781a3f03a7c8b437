"""`python -m hermes_atropos.envs.swe_smith_oracle serve|process|evaluate|make`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the environment, or the generator of instances."""
    if sys.argv[1:2] == ["make"]:
        from hermes_atropos.cli.swe_smith import app

        del sys.argv[1]
        app(prog_name="python -m hermes_atropos.envs.swe_smith_oracle make")
    else:
        from hermes_atropos.envs.swe_smith_oracle.env import SweSmithOracleEnv

        SweSmithOracleEnv.cli()


if __name__ == "__main__":
    main()
