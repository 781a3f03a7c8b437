"""The channel: one byte stream into a sandbox, many concurrent conversations."""

from hermes_exec.aio.streams import FdStream
from hermes_exec.channel.channel import Channel
from hermes_exec.channel.conversation import Conversation, Data, End, Event, Overdue, RemoteError
from hermes_exec.channel.handshake import SandboxFacts

__all__ = ["Channel", "Conversation", "Data", "End", "Event", "FdStream", "Overdue", "RemoteError", "SandboxFacts"]
