"""Endless Terminals: `python -m hermes_atropos.envs.endless_terminals serve|process|evaluate`."""

from hermes_exec._lazy import lazy_attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hermes_atropos.envs.endless_terminals.env import ENV, EndlessTerminalsConfig, EndlessTerminalsEnv

__all__ = ["ENV", "EndlessTerminalsConfig", "EndlessTerminalsEnv"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, where=("env",))
