"""Every error this project raises, and its stable code on the wire.

Belongs here: exception classes, their fields, the code table. Must not be here: any import of the
project, any decision about when an error is raised.

The tree (wire code in brackets)::

    RpcBackendError [1]            anything of ours; an unknown wire code becomes this
    ├── ConfigError [10]           what the user asked for cannot be
    │   ├── SettingError [11]      an environment switch or option has a bad value
    │   └── EndpointError [12]     an endpoint cannot be parsed
    ├── ModelError [20]            a model file or its metadata
    │   ├── ModelFileError [21]    missing, truncated, not GGUF, big-endian
    │   ├── UnsupportedModelError [22]  architecture, element type or tokenizer we do not know
    │   └── ContextFullError [23]  more tokens than the context holds
    ├── PlanError [30]             a model or graph cannot be placed on these devices
    │   ├── SplitError [31]        the asked split does not fit the model
    │   └── OutOfMemoryError [32]  a device has less memory than the plan or a request needs
    ├── GraphError [40]            a tensor or graph breaks a rule of its operation
    │   └── UnsupportedOpError [41]     the device cannot run this operation
    ├── ProtocolError [50]         a message breaks the protocol
    │   ├── LocalProtocolError [51]     we were about to break it
    │   ├── RemoteProtocolError [52]    the other side broke it
    │   ├── NegotiationError [53]  HELLO found no common ground
    │   └── LimitError [54]        a size or count is above an agreed limit
    ├── SessionError [60]          a command does not fit the state of its session
    │   ├── HandleError [61]       an unknown, freed or foreign handle
    │   └── StaleGraphError [62]   a replay of a graph the worker no longer trusts
    ├── DeviceError [70]           a device failed
    │   └── ComputeError [71]      a graph failed while it ran
    ├── ChannelError [80]          the other side cannot be reached
    │   ├── ConnectError [81]      no connection within the connect timeout
    │   ├── WorkerLostError [82]   an open connection went away
    │   └── DeadlineError [83]     a wait passed its deadline
    └── PluginError [90]           a plugin
        ├── UnknownPluginError [91]     no plugin of that name
        ├── PluginConflictError [92]    two plugins claim one name
        └── PluginLoadError [93]   a plugin failed to import or to start
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Where an error happened; empty fields are unknown.

    `remote_type` and `traceback` describe the exception on the worker that became this error.
    """

    worker: str = ""
    device: str = ""
    command: str = ""
    op: str = ""
    remote_type: str = ""
    traceback: str = ""

    def describe(self) -> str:
        """Return the known places as `worker tcp://…, device cpu, …`, without the traceback."""
        places = ("worker", "device", "command", "op")
        return ", ".join(f"{name} {value}" for name in places if (value := getattr(self, name)))


class RpcBackendError(Exception):
    """Base of every error of this project: a message and the place it happened."""

    code: ClassVar[int] = 1

    def __init__(self, message: str, *, context: ErrorContext | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.context = context or ErrorContext()

    def __str__(self) -> str:
        where = self.context.describe()
        return f"{self.message} ({where})" if where else self.message

    def located(self, **places: str) -> RpcBackendError:
        """Fill in places that are still unknown (`worker=…, device=…`) and return self."""
        known = {field.name for field in fields(ErrorContext) if getattr(self.context, field.name)}
        missing = {name: value for name, value in places.items() if name not in known}
        self.context = replace(self.context, **missing)
        return self


class ConfigError(RpcBackendError):
    """What the user asked for cannot be."""

    code = 10


class SettingError(ConfigError):
    """An environment switch or option has a bad value; the message names it."""

    code = 11


class EndpointError(ConfigError):
    """An endpoint cannot be parsed; the message quotes it."""

    code = 12


class ModelError(RpcBackendError):
    """A model file or its metadata cannot be used."""

    code = 20


class ModelFileError(ModelError):
    """A model file is missing, truncated, not GGUF or big-endian; the message names the path."""

    code = 21


class UnsupportedModelError(ModelError):
    """The architecture, an element type or the tokenizer of a model is not known here."""

    code = 22


class ContextFullError(ModelError):
    """A prompt or a generation needs more tokens than the context holds."""

    code = 23


class PlanError(RpcBackendError):
    """A model or graph cannot be placed on the devices given."""

    code = 30


class SplitError(PlanError):
    """The asked split does not fit the model or the devices."""

    code = 31


class OutOfMemoryError(PlanError):
    """A device has less memory than the plan or a request needs; the message has both figures."""

    code = 32


class GraphError(RpcBackendError):
    """A tensor or graph breaks a rule of its operation."""

    code = 40


class UnsupportedOpError(GraphError):
    """The device cannot run an operation with these shapes and element types."""

    code = 41


class ProtocolError(RpcBackendError):
    """A message breaks the protocol."""

    code = 50


class LocalProtocolError(ProtocolError):
    """This side was about to break the protocol: a bug here."""

    code = 51


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol."""

    code = 52


class NegotiationError(ProtocolError):
    """HELLO found no common ground; the message has both versions and which side to update."""

    code = 53


class LimitError(ProtocolError):
    """A size or count in a message is above the agreed limit."""

    code = 54


class SessionError(RpcBackendError):
    """A command does not fit the state of its session."""

    code = 60


class HandleError(SessionError):
    """A handle is unknown, was freed, or belongs to another session."""

    code = 61


class StaleGraphError(SessionError):
    """A replay was asked of a graph that the worker does not hold or no longer trusts."""

    code = 62


class DeviceError(RpcBackendError):
    """A device failed."""

    code = 70


class ComputeError(DeviceError):
    """A graph failed while it ran."""

    code = 71


class ChannelError(RpcBackendError):
    """The other side cannot be reached."""

    code = 80


class ConnectError(ChannelError):
    """No usable connection within the connect timeout."""

    code = 81


class WorkerLostError(ChannelError):
    """An open connection went away; the message names the worker."""

    code = 82


class DeadlineError(ChannelError):
    """A wait passed its deadline; the message names worker and command."""

    code = 83


class PluginError(RpcBackendError):
    """A plugin cannot be used."""

    code = 90


class UnknownPluginError(PluginError):
    """No plugin of that name; the message lists the known ones and the nearest."""

    code = 91


class PluginConflictError(PluginError):
    """Two plugins claim one name."""

    code = 92


class PluginLoadError(PluginError):
    """A plugin failed to import or to start."""

    code = 93


def _with_subclasses(cls: type[RpcBackendError]) -> list[type[RpcBackendError]]:
    return [cls, *(deeper for child in cls.__subclasses__() for deeper in _with_subclasses(child))]


_BY_CODE = {cls.code: cls for cls in _with_subclasses(RpcBackendError)}


def error_class(code: int) -> type[RpcBackendError]:
    """Return the class of a wire code; an unknown code is the base class."""
    return _BY_CODE.get(code, RpcBackendError)
