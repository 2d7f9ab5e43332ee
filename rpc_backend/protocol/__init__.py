"""The wire: commands, records, framing, negotiation. Pure: no socket, no clock, no thread."""

from rpc_backend.protocol.commands import COMMANDS, MAJOR, MINOR, Command, Lane, Payload
from rpc_backend.protocol.conversation import (
    BadRequestEvent,
    ClientConversation,
    ErrorEvent,
    NoticeEvent,
    ReplyEvent,
    RequestEvent,
    WorkerConversation,
)
from rpc_backend.protocol.endpoint import Endpoint, check_bind, parse_endpoint, parse_workers
from rpc_backend.protocol.failures import decode_error, encode_error
from rpc_backend.protocol.framing import Frame, Frames, Limits
from rpc_backend.protocol.negotiation import Agreement, Greeting, negotiate, own_greeting

__all__ = [
    "COMMANDS", "MAJOR", "MINOR", "Agreement", "BadRequestEvent", "ClientConversation", "Command", "Endpoint",
    "ErrorEvent", "Frame", "Frames", "Greeting", "Lane", "Limits", "NoticeEvent", "Payload", "ReplyEvent",
    "RequestEvent", "WorkerConversation", "check_bind", "decode_error", "encode_error", "negotiate", "own_greeting",
    "parse_endpoint", "parse_workers",
]  # fmt: skip
