"""`python -m hermes_atropos.envs.terminalbench_2`."""

from hermes_atropos.envs.terminalbench_2 import ENV

if __name__ == "__main__":
    ENV.cli()
