"""The settings of a process, from its environment and its command line.

The fields of `Settings` are the one table: environment names, defaults, accepted forms and what each does.
The command line's help and the documentation are made from it by `setting_rows()`. Imports msgspec, the standard
library and, where it is asked for connections, `bus`, so that a router can use it too.

    settings = Settings.from_environment(replica="router-1")      # what is given wins over the environment
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_type_hints

import msgspec
from msgspec import Meta

from .invalid import InvalidValue

if TYPE_CHECKING:
    from .bus.connect import NatsOptions
    from .bus.topology import StreamLimits

PREFIX = "SICKBAY_"

LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


class SettingRefused(InvalidValue):
    """A setting whose value is not accepted.

    Attributes: `name` (the environment's name), `value`, `accepted` (the accepted form in words).
    """

    def __init__(self, name: str, value: object, accepted: str) -> None:
        self.name = name
        super().__init__(f"setting {name}", value, accepted)


def _says(text: str, accepted: str, default: str = "") -> Meta:
    return Meta(description=text, extra={"accepted": accepted, "default": default})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a process is told from outside. The environment's name of a field is SICKBAY_ and its name."""

    nats: Annotated[
        str,
        _says(
            "where NATS is; without it the server that `sickbay serve` runs in the data folder",
            "nats://[user:password@]host:port, several joined by commas (or tls://, ws://, wss://)",
        ),
    ] = ""
    creds: Annotated[str, _says("NATS credentials file", "a path")] = ""
    tls_ca: Annotated[str, _says("PEM file of the authority that signed the NATS server's certificate", "a path")] = ""
    inbox_prefix: Annotated[
        str, _says("first part of the subjects on which answers come, where the NATS user has one of its own", "a word")
    ] = "_INBOX"
    replica: Annotated[
        str, _says("name of this router machine or pod, unique in the fleet and stable", "a name", "the host's name")
    ] = ""
    machine: Annotated[
        str,
        _says("name added to loopback providers, which are others on each machine", "a name", "the host's name"),
    ] = ""
    data: Annotated[str, _says("folder of the embedded NATS server: store, credentials, lock", "a path")] = "~/.sickbay"
    port: Annotated[
        int,
        Meta(ge=0, le=65_535),
        _says("port of the embedded NATS server on 127.0.0.1", "a port; 0: the last one it had, else a free one"),
    ] = 0
    sync_always: Annotated[
        bool, _says("the embedded NATS writes to the disk before it acknowledges: survives power cuts", "1 or 0")
    ] = False
    stream_replicas: Annotated[
        Literal[1, 3, 5], _says("copies of each stream that is created, in a cluster of NATS servers", "1, 3 or 5")
    ] = 1
    log_max_days: Annotated[
        float,
        Meta(gt=0, le=3_650),
        _says("age at which the log drops events, when its stream is created", "a number of days above 0"),
    ] = 7.0
    log_max_gib: Annotated[
        float,
        Meta(gt=0, le=65_536),
        _says("size at which the log drops events, when its stream is created", "a number of GiB above 0"),
    ] = 10.0
    http: Annotated[str, _says("where `sickbay serve` and `sickbay api` answer HTTP", "host:port, or off")] = (
        "127.0.0.1:8480"
    )
    http_tokens: Annotated[
        str, _says("file of who may report, read and operate by HTTP, as `sickbay token` prints it", "a path to TOML")
    ] = ""
    http_anonymous: Annotated[
        Literal["", "read", "none"],
        _says(
            "what HTTP lets somebody do who has no token",
            "read or none",
            "read where it listens on this machine only, none elsewhere",
        ),
    ] = ""
    policy: Annotated[
        str, _says("policy file that seeds an empty log; a log that has a policy keeps its own", "a path to TOML")
    ] = ""
    probes: Annotated[
        str, _says("file of targets that the services probe while nobody calls them", "a path to TOML")
    ] = ""
    alerts: Annotated[
        str, _says("file of receivers that the services tell of holds, releases and warnings", "a path to TOML")
    ] = ""
    view: Annotated[
        str, _says("which view of the log is the fleet's: services write it, routers follow it", "a name, or nothing")
    ] = ""
    beside: Annotated[
        str,
        _says(
            "write a view of this name beside the running services: tell nobody what follows, answer nothing",
            "a name, or nothing",
        ),
    ] = ""
    shadow: Annotated[
        bool, _says("seed a policy that enforces no rule, where the log has no policy yet: a first week", "1 or 0")
    ] = False
    history: Annotated[
        str,
        _says(
            "file in which `sickbay serve` keeps the history, for `sickbay history` and any SQLite program",
            "a path, or off",
            "history.db in the data folder; off where NATS is named",
        ),
    ] = ""
    history_minutes_days: Annotated[
        int,
        Meta(ge=0, le=36_500),
        _says("age at which the history's counts by minute are added up to hours", "days of log time; 0: never"),
    ] = 7
    history_hours_days: Annotated[
        int,
        Meta(ge=0, le=36_500),
        _says("age at which its counts by hour are added up to days", "days of log time; 0: never"),
    ] = 90
    history_days: Annotated[
        int,
        Meta(ge=0, le=36_500),
        _says("age at which its counts by day, holds and acts are dropped", "days of log time; 0: never"),
    ] = 0
    traces: Annotated[
        bool, _says("make OpenTelemetry spans of decisions, attempts and folds; needs the extra `otel`", "1 or 0")
    ] = False
    log_level: Annotated[LogLevel, _says("what the services log", "DEBUG, INFO, WARNING or ERROR")] = "INFO"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
        """The settings: what is given and not None, else the environment's, else the default.

        An empty variable counts as not set. Raises `SettingRefused` naming the variable and the accepted form.
        """
        environ = os.environ if environ is None else environ
        made: dict[str, Any] = {}
        for row in setting_rows():
            value = given.pop(row.field, None)
            if isinstance(value, Path):
                value = str(value)
            if value is None:
                value = environ.get(row.name) or None
            if value is not None:
                made[row.field] = _converted(row, value)
        if given:
            raise TypeError(f"unknown settings: {', '.join(given)}")
        return cls(**made)

    @property
    def replica_name(self) -> str:
        """`replica`, or the host's name."""
        return self.replica or socket.gethostname()

    @property
    def machine_name(self) -> str:
        """`machine`, or the host's name."""
        return self.machine or socket.gethostname()

    @property
    def data_folder(self) -> Path:
        """`data` with `~` resolved."""
        return Path(self.data).expanduser()

    @property
    def nats_url(self) -> str:
        """`nats`, or where `sickbay serve` last started the server of the data folder; empty if there is neither."""
        if self.nats:
            return self.nats
        with suppress(ImportError):  # the embedded server needs POSIX; a client elsewhere has none
            from .bus.embedded import saved_url

            return saved_url(self.data_folder) or ""
        return ""

    def nats_options(self, name: str, url: str = "", /, **given: Any) -> NatsOptions:
        """How to reach NATS as the connection `name`: at `url`, else at `nats_url`. What is given wins over the
        settings. Raises `OptionsError`."""
        from .bus.connect import NatsOptions

        known = {"creds": self.creds or None, "tls_ca": self.tls_ca or None, "inbox_prefix": self.inbox_prefix}
        return NatsOptions.from_url(url or self.nats_url, **{**known, "name": name, **given})

    def read(self, field: str) -> bytes | None:
        """What is in the file that a setting names; None where it names none.

        Raises `SettingRefused` naming the setting for a file that is not there or cannot be read.
        """
        path = str(getattr(self, field))
        if not path:
            return None
        try:
            return Path(path).expanduser().read_bytes()
        except OSError as error:
            accepted = f"a file that can be read ({error.strerror or error})"
            raise SettingRefused(PREFIX + field.upper(), path, accepted) from error

    @property
    def history_path(self) -> Path | None:
        """The file of the history, None when there is none: a service of somebody's NATS keeps one if told where."""
        if self.history == "off" or (self.nats and not self.history):
            return None
        return Path(self.history).expanduser() if self.history else self.data_folder / "history.db"

    @property
    def limits(self) -> StreamLimits:
        """What this installation chose for the streams that it creates."""
        from .bus.topology import DAY_S, GIB, StreamLimits

        return StreamLimits(
            replicas=self.stream_replicas,
            log_max_age_s=round(self.log_max_days * DAY_S),
            log_max_bytes=round(self.log_max_gib * GIB),
        )

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of `http`, None when it is off. Raises `SettingRefused`."""
        if self.http == "off":
            return None
        host, _, port = self.http.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            raise SettingRefused(f"{PREFIX}HTTP", self.http, "host:port, or off")
        return host, int(port)


def is_loopback(host: str | None) -> bool:
    """Whether a host of an address or a Host header is this machine and nobody else's."""
    name = (host or "").strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class SettingRow(NamedTuple):
    """One setting, for help and documentation."""

    field: str
    name: str
    """Its environment variable."""
    default: str
    accepted: str
    says: str


def setting_rows() -> Iterator[SettingRow]:
    """Every setting, in order."""
    hints = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        meta = next(meta for meta in hints[field.name].__metadata__ if isinstance(meta, Meta) and meta.extra)
        extra = meta.extra or {}
        default = extra["default"] or str(field.default)
        yield SettingRow(field.name, PREFIX + field.name.upper(), default, extra["accepted"], meta.description or "")


def _converted(row: SettingRow, value: object) -> Any:
    hint = get_type_hints(Settings, include_extras=True)[row.field]
    raised = value.upper() if get_args(hint)[0] == LogLevel and isinstance(value, str) else value
    try:
        return msgspec.convert(raised, hint, strict=False)
    except msgspec.ValidationError:
        raise SettingRefused(row.name, value, row.accepted) from None
