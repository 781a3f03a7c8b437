"""TerminalBench 2: `python -m hermes_atropos.envs.terminalbench_2 evaluate`."""

from hermes_exec._lazy import lazy_attributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hermes_atropos.envs.terminalbench_2.env import ENV, TerminalBench2Config, TerminalBench2Env

__all__ = ["ENV", "TerminalBench2Config", "TerminalBench2Env"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__, __all__, where=("env",))
