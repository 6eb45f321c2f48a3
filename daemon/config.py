"""The configuration file of one daemon: TOML, read strictly, so that a typing error is found before anything starts."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from overlay.config import OverlayConfig
from overlay.records import Address
from overlay.search import MAX_K
from sbon.cost_space import MAX_LOAD, LoadScaling
from sbon.errors import ConfigurationError
from sbon.streams import SinkSpec, StreamSpec

DEFAULT_STATE_DIR = Path("/var/lib/sbon")
DEFAULT_SOCKET = Path("/run/sbon/control.sock")
#: The kernel's bound on the path of a Unix socket (sun_path, less the final zero).
MAX_SOCKET_PATH_BYTES = 107

WILDCARDS = ("0.0.0.0", "::")

Spec = TypeVar("Spec", StreamSpec, SinkSpec)
NodeName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[node]``: this host. UDP and TCP both listen at ``listen`` ("HOST:PORT").

    ``advertise`` is the host that peers reach it at, needed when ``listen`` is a wildcard such as 0.0.0.0.
    ``load`` is "host" (the load average per core, sampled), or a fixed number, at most MAX_LOAD, instead.
    """

    name: NodeName
    listen: str
    advertise: str | None = None
    state_dir: Path = DEFAULT_STATE_DIR
    socket: Path = DEFAULT_SOCKET
    accept_operators: bool = True
    load: Literal["host"] | Annotated[float, Meta(ge=0, le=MAX_LOAD)] = "host"

    @property
    def listen_address(self) -> Address:
        return parse_address(self.listen)


class TrustConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[trust]``: who is believed (docs/trust.md). A host with a certificate believes its cluster, and nobody else.

    ``open``: without one, believe anybody. None: only where nobody else can be, when listening on loopback.
    ``authority``: "HOST:PORT" where certificates are renewed, if it has moved since this host has joined.
    ``certificate_days``: how long certificates are valid that the authority makes on this host.
    """

    open: bool | None = None
    authority: str | None = None
    certificate_days: Annotated[float, Meta(gt=0, le=3650)] = 30.0


class CapacityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[capacity]``: what this host gives to operators of queries, all together; no limit where nothing is said."""

    cpu_cores: NotNegative | None = None
    memory_mb: NotNegative | None = None
    in_bytes_per_s: NotNegative | None = None
    out_bytes_per_s: NotNegative | None = None


class PlacementConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[placement]``: where operators go, and when they move (SBON ICDE'06, section 3.3).

    ``candidates`` hosts of least predicted cost are measured for each operator. A host looks for a better one every
    ``period_s``, but only if the operator's virtual point moved by ``displacement_threshold_ms`` or it was not looked
    for one for long, and moves it only if that surely saves ``minimum_migration_saving`` (a share, 0.01 is a hundredth)
    of its cost and repays the state that is shipped. A query that was moved then rests for ``rest_s``. Every
    ``replan_period_s`` the queries are looked at one after the other, all operators of each together, until
    ``replan_moves`` have been moved.
    ``strategy``: how the operators of queries whose sink is here are placed (docs/placement.md); all but "sbon" are to
    compare with, and under them nothing moves.
    """

    strategy: Literal["sbon", "relaxation", "optimal", "producer", "consumer", "random", "multicast"] = "sbon"
    candidates: Count = 10
    displacement_threshold_ms: NotNegative = 5.0
    minimum_migration_saving: Annotated[float, Meta(ge=0, lt=1)] = 0.005
    period_s: Positive = 5.0
    rest_s: NotNegative = 10.0
    #: Who decides on the order of joins (docs/planning.md).
    planner: Literal["auto", "joint", "top-down"] = "auto"
    replan_period_s: Positive = 300.0
    replan_moves: Count = 10
    #: One-way ms that a fully busy host counts as further away.
    load_scale_ms: NotNegative = 20.0
    #: "convex": for operators that busy hosts slow down more than in proportion.
    load_scaling: LoadScaling = LoadScaling.LINEAR
    #: What an operator is reckoned to take of its host, beside the bandwidth of its streams.
    operator_cpu_cores: NotNegative = 0.1
    operator_memory_mb: NotNegative = 64.0


class FailoverConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[failover]``: what happens to fragments here when their host is lost (docs/failover.md).

    ``replicas``: hosts nearby that the state of each fragment here goes to, batch by batch; 0: none, and then a
    fragment waits for its host. ``lease_s``: how long nothing must be heard of a host before its fragments go on
    elsewhere; the same on all nodes. ``warm``: an engine runs here as long as a replica is here, so that it starts at
    once.
    """

    replicas: Annotated[int, Meta(ge=0, le=4)] = 1
    lease_s: Annotated[float, Meta(ge=1, le=600)] = 8.0
    warm: bool = False


class RegionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[regions]``: the hierarchy of clusters (docs/planning.md). The same on all nodes.

    ``max_cs``: hosts in a cluster at most. ``period_s``: how often members report to its coordinator, who is missed
    after two and a half of these.
    """

    max_cs: Annotated[int, Meta(ge=4, le=256)] = 32
    period_s: Positive = 30.0


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[engine]``: the Spark process beside the daemon. It starts with the first fragment.

    ``trigger_ms``: least time between two micro-batches; ``log_bytes``: bound on each link log;
    ``start_timeout_s``: how long Spark may take to start; ``idle_s``: it is stopped after so long without a fragment.
    ``spark``: further settings of Spark's; the few that the meaning of results depends on are refused.
    """

    master: str = "local[2]"
    memory_mb: Annotated[int, Meta(ge=384)] = 512
    trigger_ms: Annotated[int, Meta(ge=0)] = 500
    log_bytes: Count = 64 * 1024 * 1024
    start_timeout_s: Positive = 150.0
    idle_s: Positive = 60.0
    spark: dict[str, str] = {}


class EmulationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[emulation]``: pretend to be on a wide-area network; for demonstrations and tests.

    ``rtt_ms`` maps a peer, by node name or "HOST:PORT", to a round trip: what this node sends to it is held back for
    half of that. Both ends need the same value.
    """

    rtt_ms: dict[str, NotNegative] = {}


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file. ``[emulation]`` is None unless it is there, and then `sbon emulate` is refused."""

    node: NodeConfig
    overlay: OverlayConfig = OverlayConfig()
    trust: TrustConfig = TrustConfig()
    capacity: CapacityConfig = CapacityConfig()
    placement: PlacementConfig = PlacementConfig()
    failover: FailoverConfig = FailoverConfig()
    regions: RegionsConfig = RegionsConfig()
    engine: EngineConfig = EngineConfig()
    emulation: EmulationConfig | None = None
    stream: tuple[StreamSpec, ...] = ()
    sink: tuple[SinkSpec, ...] = ()


def parse_address(text: str) -> Address:
    """Read "HOST:PORT" or "[IPV6]:PORT". Raises ValueError with one line for the user."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f'"{text}" is not an address: write HOST:PORT, for example 192.0.2.7:7400')
    return host, int(port)


def load_config(file: Path) -> Config:
    """Read ``file``; relative paths in it are relative to its folder. Raises ConfigurationError."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}: give a readable file with --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not TOML: {error}") from error
    base = file.parent.absolute()

    def to_path(kind: type[Any], value: Any) -> Path:
        if kind is not Path or not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(f"Expected a path in quotes, got {value!r}")
        return base / value

    try:
        config = msgspec.convert(table, Config, dec_hook=to_path)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{file}: {_explain(str(error))}") from error
    try:
        _check(config)
    except ValueError as error:
        raise ConfigurationError(f"{file}: {error}") from error
    return msgspec.structs.replace(
        config,
        stream=tuple(_with_path_from(base, stream) for stream in config.stream),
        sink=tuple(_with_path_from(base, sink) for sink in config.sink),
    )


def _with_path_from(base: Path, spec: Spec) -> Spec:
    """``options.path`` of a local file made absolute: the engine runs in another folder."""
    path = spec.options.get("path")
    if path is None or "://" in path:
        return spec
    return msgspec.structs.replace(spec, options={**spec.options, "path": str(base / path)})


def _check(config: Config) -> None:
    """Raise ValueError, naming the key, for what types alone cannot tell."""
    try:
        host, _ = config.node.listen_address
    except ValueError as error:
        raise ValueError(f"node.listen: {error}") from error
    if config.trust.authority is not None:
        try:
            parse_address(config.trust.authority)
        except ValueError as error:
            raise ValueError(f"trust.authority: {error}") from error
    if config.placement.strategy == "relaxation" and config.placement.candidates > MAX_K:
        raise ValueError(f"placement.candidates: at most {MAX_K} are possible with the strategy relaxation")
    if host in WILDCARDS and config.node.advertise is None:
        raise ValueError(
            f"node.advertise is missing: nobody can reach {host}, so say which host name or address peers use"
        )
    if len(bytes(config.node.socket)) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"node.socket: {config.node.socket} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a "
            "Unix socket's path may have: choose a shorter one"
        )
    try:
        config.overlay.check()
    except ValueError as error:
        raise ValueError(f"overlay.{error}") from error
    for kind, specs in (("stream", config.stream), ("sink", config.sink)):
        _refuse_duplicates(kind, [spec.name for spec in specs])


def _refuse_duplicates(kind: str, names: Sequence[str]) -> None:
    for name, times in Counter(names).items():
        if not name.isidentifier():
            raise ValueError(f'{kind}.name: "{name}" cannot be used in SQL: use letters, digits and _')
        if times > 1:
            raise ValueError(f'{kind}.name: "{name}" is there {times} times: names of {kind}s must differ')


_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
#: Key -> what to write there, where the type alone does not say it.
_HINTS = {
    r"node\.name": "use letters, digits and . _ - only, at most 64",
    r"node\.load": 'write "host", or a number such as 0.0',
    r".*\.options\[.*": "values of options are written in quotes",
    r"emulation\.rtt_ms\[.*": "write a round trip in ms",
}
_FIELD = re.compile(r"(?P<problem>unknown|required) field `(?P<field>[^`]*)`")


def _explain(message: str) -> str:
    """msgspec's message with the key's path in front, and what is allowed there."""
    match = _AT.match(message)
    assert match is not None
    what, path = match["what"], match["path"] or ""
    field = _FIELD.search(what)
    if field is None:
        what = what.replace("`", "").replace("object", "table").replace("array", "list of tables")
        hint = next((hint for pattern, hint in _HINTS.items() if re.fullmatch(pattern, path)), None)
        return f"{path}: {what[:1].lower()}{what[1:]}{f': {hint}' if hint else ''}"
    key = f"{path}.{field['field']}".lstrip(".")
    if field["problem"] == "required":
        return f"{key} is missing"
    allowed = ", ".join(_settings_at(path))
    return f"{key} is not a setting: {path or 'the file'} can have {allowed}"


def _settings_at(path: str) -> tuple[str, ...]:
    """Names of the settings in the table at ``path``, such as "node" or "stream[0]"."""
    tables: dict[str, type[msgspec.Struct]] = {
        "": Config,
        "node": NodeConfig,
        "overlay": OverlayConfig,
        "trust": TrustConfig,
        "capacity": CapacityConfig,
        "placement": PlacementConfig,
        "failover": FailoverConfig,
        "regions": RegionsConfig,
        "engine": EngineConfig,
        "emulation": EmulationConfig,
        "stream": StreamSpec,
        "sink": SinkSpec,
    }
    return tuple(field.name for field in msgspec.structs.fields(tables[path.partition("[")[0]]))
