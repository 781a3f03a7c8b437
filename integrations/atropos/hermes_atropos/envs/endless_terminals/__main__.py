"""`python -m hermes_atropos.envs.endless_terminals`."""

from hermes_atropos.envs.endless_terminals import ENV

if __name__ == "__main__":
    ENV.cli()
