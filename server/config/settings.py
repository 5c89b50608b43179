"""Every setting of the server: its name, its default, its bounds, and the four places a value can come from.

The command line wins over REJOINDER_* variables, those over the TOML file, that over the defaults here. A setting has
one name: `reply_timeout_s` in TOML, REJOINDER_REPLY_TIMEOUT_S as a variable, `--data-dir` for `data_dir` as an option.
A name that is not one of them is an error everywhere, for a misspelt setting is one that silently does nothing.
No value is ever quoted in an error: it may be a secret put in the wrong place.
"""

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_origin
from urllib.parse import urlsplit

import msgspec

from server.config.checks import (
    ConfigError,
    api_key,
    base_url,
    check_address,
    closest,
    has_gaps,
    held,
    is_loopback,
    unusable,
)
from server.config.upstreams import Defaults, UpstreamSettings, short_form, upstreams_of
from server.protocol.budget import Budget
from server.telemetry import scrubbed_urls

Size = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Limit = Annotated[int, msgspec.Meta(ge=0)]

_MEBIBYTE: Final = 1 << 20


def default_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where data lives if nobody says: /var/lib for root, else the user's data directory of the XDG specification.

    Raises ConfigError for a user without a home directory.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/rejoinder")
    # The specification asks to ignore a relative path here.
    shared = environment.get("XDG_DATA_HOME", "")
    if os.path.isabs(shared):
        return Path(shared, "rejoinder")
    try:
        home = environment.get("HOME") or Path.home()
    except RuntimeError:
        raise ConfigError("data_dir is needed (--data-dir): this user has no home directory") from None
    return Path(home, ".local/share/rejoinder")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one server. `load` checks them; names end in their unit, sizes are bytes, times are seconds."""

    upstream: str | None = None
    """Base URL of the one model server (http://host:8000/v1), without a slash at its end."""
    upstream_api_key: str | None = None
    """Sent to the model server as a bearer token. The client's own Authorization never is."""
    upstreams: tuple[UpstreamSettings, ...] = ()
    """All model servers; `upstream` is one of them by itself. `serve` cannot do without."""
    pass_through: tuple[str, ...] = ()
    """Other routes that are handed to the upstream of their model unread, such as /v1/embeddings."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes any free one."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    """How many processes serve the port."""
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Port of `/metrics` alone; 0 leaves it on the server's own."""
    metrics_host: str = "127.0.0.1"
    """Address of that port."""
    data_dir: Path = msgspec.field(default_factory=default_data_dir)
    """Where the embedded Postgres keeps its data, absolute. Unused with a `database_url`."""
    database_url: str | None = None
    """A Postgres of your own (postgresql://user:password@host:5432/name) instead of the embedded one."""
    no_migrate: bool = False
    """Leave the database's schema to `rejoinder migrate` instead of bringing it up to date at start."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe log line that is written."""
    traces: bool = False
    """Send spans of requests to an OpenTelemetry collector; needs the extra `otel`."""

    open_to_all: bool = False
    """Serve everybody who reaches an address that is not loopback, while there is no API key."""
    cache_salts: Literal["auto", "always", "never"] = "auto"
    """Whether prompts of different tenants are set apart in vLLM's prefix cache; `auto`: once there are two."""
    requests_per_minute: Limit = 0
    """How many requests a key may send in a minute."""
    open_turns_per_key_max: Limit = 0
    """How many turns of one key may be open in one process."""

    body_bytes_max: Size = 64 * _MEBIBYTE
    """Largest request body; a larger one is a 413."""
    # The parsers recurse: past about a thousand levels Python itself gives up, and the request's own frames count.
    json_depth_max: Annotated[int, msgspec.Meta(ge=1, le=500)] = 200
    """Deepest nesting of a request body; a deeper one is a 400."""
    event_bytes_max: Size = 64 * _MEBIBYTE
    """Largest single event of an upstream's stream."""
    reply_bytes_max: Size = 256 * _MEBIBYTE
    """Largest JSON reply of an upstream."""
    stream_bytes_max: Size = 64 * _MEBIBYTE
    """How much of a stream a slow reader may leave unread before it is let go."""

    connect_timeout_s: Seconds = 5
    """Wait for a connection to the upstream."""
    reply_timeout_s: Seconds = 600
    """Wait for an upstream's whole JSON reply."""
    silence_timeout_s: Seconds = 600
    """Wait for the next byte of an upstream's stream."""
    first_byte_timeout_s: Seconds = 600
    """Wait for the head of an upstream's stream."""
    open_turns_max: Limit = 1000
    """How many turns may be open in one process; 0 is no limit. Another is refused with a 503."""
    turn_max_s: Seconds = 3600
    """How long a turn may take, its rounds and retries together, before it fails."""
    retries_max: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    """How often an upstream that was not reached, or asked to wait a moment, is asked again."""
    upstream_transport: Literal["lean", "aiohttp"] = "lean"
    """What carries requests to upstreams: our own, or aiohttp's."""
    drain_max_s: Seconds = 5
    """How long turns in flight may go on when the server is told to stop."""
    first_event_wait_s: Seconds = 5
    """Wait for the first event behind the upstream's headers before our own first events go out."""
    keep_alive_interval_s: Seconds = 10
    """Between the comments that keep a silent stream to the client alive."""

    on_disconnect: Literal["finish", "cancel"] = "finish"
    """What becomes of a stored turn whose client left: it ends and is stored, or it is cancelled at once."""
    detached_run_max_s: Seconds = 300
    """How long a turn may go on without its client before it is cancelled."""
    encrypted_only: Literal["refuse", "omit"] = "refuse"
    """Reasoning of which the upstream can read nothing: a 400, or left out of what the upstream gets."""

    output_tokens: Limit = 0
    """How many tokens of output are asked for where a request says nothing; 0 for what the upstream takes."""
    output_tokens_max: Limit = 0
    """The most `max_output_tokens` that a request may ask for."""
    total_tokens_max: Limit = 0
    """What the rounds of one response may cost in tokens before there is no other."""
    history_items_max: Limit = 0
    """The most items that history and input may have together."""
    history_bytes_max: Limit = 0
    """The most bytes that history and input may have together."""

    lease_s: Seconds = 30
    """How long a turn's claim on its conversation outlives its process; a living turn renews it."""

    retention_days: Annotated[int, msgspec.Meta(ge=0, le=36_500)] = 30
    """How many days after it was made a response expires that was not made in a conversation; 0 is never."""
    sweep_interval_s: Annotated[float, msgspec.Meta(ge=0)] = 3600
    """Between two sweeps for what has expired or was deleted; 0 leaves it to `rejoinder prune`."""

    pool_size: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Database connections kept open."""
    history_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * _MEBIBYTE
    """How much of the histories of recent responses is kept in memory; 0 for none."""
    pgbouncer: bool = False
    """The database is behind PgBouncer in transaction mode: no prepared statements."""
    row_level_security: Literal["auto", "always", "never"] = "auto"
    """Whether a role that Postgres would not hold to its tenant is refused; `auto`: once there are two tenants."""

    @property
    def may_be_open(self) -> bool:
        """Whether everybody may be served while there is no API key."""
        return self.open_to_all or is_loopback(self.host)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, _shown(name, getattr(self, name))) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


SECRETS: Final = ("upstream_api_key", "database_url")
"""Settings never shown, each of which may also be given as the name of a file that holds it: `<name>_file`."""

_TYPES: Final[dict[str, Any]] = {field.name: field.type for field in msgspec.structs.fields(Config)}
# Only the file can hold tables.
del _TYPES["upstreams"]
_NAMES: Final = (*_TYPES, *(f"{name}_file" for name in SECRETS))


class _Layer(NamedTuple):
    """The values of one place, how a setting is spelled there, and whether its values have types or are text."""

    values: Mapping[str, object]
    spelled: Callable[[str], str]
    typed: bool


def load(arguments: Mapping[str, object], environment: Mapping[str, str]) -> Config:
    """The settings of this process. `arguments` are options by setting name, None where one was not given.

    `config` among them, or REJOINDER_CONFIG, names the TOML file. An empty variable counts as absent, as compose files
    pass them. Raises ConfigError.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    variables = _variables(environment)
    config_files = (given.pop("config", None), variables.pop("config", None))
    config_file = next(filter(None, config_files), None)
    from_file = _file_values(Path(str(config_file))) if config_file else {}
    tables = from_file.pop("upstreams", None)
    layers = [
        _Layer(from_file, str, True),
        _Layer(variables, lambda name: f"REJOINDER_{name.upper()}", False),
        _Layer(given, lambda name: f"--{name.replace('_', '-')}", False),
    ]
    chosen: dict[str, tuple[str, _Layer]] = {}
    for layer in layers:
        chosen |= _named(layer)
    values: dict[str, Any] = {name: _value(name, source, layer) for name, (source, layer) in chosen.items()}
    values.setdefault("data_dir", default_data_dir(environment))
    if values.get("upstream_api_key") and urlsplit(values.get("upstream") or "").username is not None:
        raise ConfigError("upstream holds credentials, and upstream_api_key is given too; give one of them")
    values["upstreams"] = _upstreams(values, tables, environment)
    return Config(**values)


def _upstreams(
    values: Mapping[str, Any], tables: object, environment: Mapping[str, str]
) -> tuple[UpstreamSettings, ...]:
    limits = {name: values[name] for name in Budget.__struct_fields__ if name in values}
    defaults = Defaults(encrypted_only=values.get("encrypted_only", "refuse"), budget=Budget(**limits))
    if tables is None:
        url = values.get("upstream")
        return () if url is None else (short_form(url, values.get("upstream_api_key"), defaults),)
    for name in ("upstream", "upstream_api_key"):
        if values.get(name) is not None:
            raise ConfigError(f"{name} and [[upstreams]] are both given; give one")
    return upstreams_of(tables, environment, defaults)


def _shown(name: str, value: object) -> object:
    if name in SECRETS and value is not None:
        return "***"
    return scrubbed_urls(value) if isinstance(value, str) else value


def _variables(environment: Mapping[str, str]) -> dict[str, object]:
    return {
        name.removeprefix("REJOINDER_").lower(): value
        for name, value in environment.items()
        if name.startswith("REJOINDER_") and value and not _is_service_link(name, value)
    }


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes set this variable, as it does in every pod beside a service that is called rejoinder."""
    if re.search(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP|SCTP)", name):
        return True
    return name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value) is not None


def _file_values(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the configuration file {path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from None


def _named(layer: _Layer) -> dict[str, tuple[str, _Layer]]:
    """Setting -> the name its value stands under in this layer: its own, or that of the file which holds it."""
    named: dict[str, tuple[str, _Layer]] = {}
    for source in layer.values:
        if source not in _NAMES:
            known = _NAMES if layer.typed else (*_NAMES, "config")
            if source == "upstreams":
                raise ConfigError(f"{layer.spelled(source)} is not read; [[upstreams]] are tables of the TOML file")
            real = closest(source, known)
            hint = f"; the closest is {layer.spelled(real)}" if real else ""
            raise ConfigError(f"{layer.spelled(source)} is not a setting{hint}")
        name = source if source in _TYPES else source.removesuffix("_file")
        if name in named:
            raise ConfigError(f"{layer.spelled(name)} and {layer.spelled(f'{name}_file')} are both given; give one")
        named[name] = (source, layer)
    return named


def _value(name: str, source: str, layer: _Layer) -> object:
    spelled = layer.spelled(source)
    value = layer.values[source]
    if source != name:
        value = held(spelled, value)
    if not layer.typed and get_origin(_TYPES[name]) is tuple and isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    try:
        converted: object = msgspec.convert(value, _TYPES[name], strict=layer.typed, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise unusable(spelled, error, _TYPES[name]) from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise ConfigError(f"{spelled} cannot be used: Expected a finite `float`")
    return _CHECKS[name](spelled, converted) if name in _CHECKS else converted


def _path(wanted: type, value: object) -> Path:
    if wanted is not Path or not isinstance(value, str) or not value:
        raise ValueError("Expected `str`, a path")
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError:
        raise ValueError("Expected a path; the home directory it begins with is unknown") from None


def _database_url(spelled: str, value: str) -> str:
    scheme = urlsplit(value).scheme if "://" in value and not has_gaps(value) else ""
    if scheme != "postgresql":
        but = f", not with {scheme}://" if scheme else ""
        raise ConfigError(f"{spelled} must begin with postgresql://{but}")
    check_address(spelled, value)
    return value


def _routes(spelled: str, routes: tuple[str, ...]) -> tuple[str, ...]:
    for route in routes:
        if not re.fullmatch(r"/v1(/[\w-]+)+", route) or re.match(r"/v1/(responses|conversations|models)\b", route):
            raise ConfigError(f"{spelled} must be routes such as /v1/embeddings, none of which is the server's own")
    return routes


_CHECKS: Final[dict[str, Callable[[str, Any], object]]] = {
    "pass_through": _routes,
    "upstream": base_url,
    "upstream_api_key": api_key,
    "database_url": _database_url,
}
