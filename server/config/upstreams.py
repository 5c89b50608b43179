"""The upstreams in the configuration file: `[[upstreams]]`, each a table, and what becomes of it.

What lives here judges entry by entry and names the member at fault as it stands in the file: `upstreams[0].urls`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from server.config.checks import ConfigError, api_key, base_url, closest, held, unusable
from server.protocol.budget import Budget
from server.protocol.profile import PRESETS, STRICT, STRICT_CHAT, VLLM, Profile
from server.telemetry import scrubbed_urls

SHORT_FORM_NAME: Final = "default"
"""The name of the one upstream that `upstream` gives, without a table."""

EncryptedOnly = Literal["refuse", "omit"]


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream as it is to be opened. `models` are names that it serves, exact or what comes before a `*`."""

    name: str
    urls: tuple[str, ...]
    profile: Profile
    models: tuple[str, ...]
    api_key: str | None = None
    is_default: bool = False
    think_tags: Literal["keep", "split"] = "keep"
    empty_output: Literal["keep", "fail"] = "keep"
    continue_reasoning_only: int = 0
    budget: Budget = Budget()
    forward_authorization: bool = False

    @property
    def has_credentials(self) -> bool:
        return self.api_key is not None or any("@" in url for url in self.urls)

    def __repr__(self) -> str:
        """Without the key, and without the credentials in a URL."""
        urls = ", ".join(map(scrubbed_urls, self.urls))
        return f"UpstreamSettings(name={self.name!r}, urls=[{urls}], models={list(self.models)!r})"


class _Entry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table as it is written."""

    name: str
    urls: list[str]
    dialect: Literal["responses", "chat"] | None = None
    profile: str | dict[str, Any] | None = None
    models: list[str] = []
    api_key: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    default: bool = False
    think_tags: Literal["keep", "split"] = "keep"
    empty_output: Literal["keep", "fail"] = "keep"
    continue_reasoning_only: Annotated[int, msgspec.Meta(ge=0, le=10)] = 0
    budget: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    forward_authorization: bool = False


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every upstream whose table says nothing else."""

    encrypted_only: EncryptedOnly
    budget: Budget


def short_form(url: str, key: str | None, defaults: Defaults) -> UpstreamSettings:
    """The upstream that `upstream` gives: a vLLM that serves every model."""
    return UpstreamSettings(
        name=SHORT_FORM_NAME,
        urls=(url,),
        profile=msgspec.structs.replace(VLLM, encrypted_only=defaults.encrypted_only),
        models=("*",),
        api_key=key,
        is_default=True,
        budget=defaults.budget,
    )


def upstreams_of(tables: object, environment: Mapping[str, str], defaults: Defaults) -> tuple[UpstreamSettings, ...]:
    """The upstreams of `[[upstreams]]`; raises ConfigError."""
    if not isinstance(tables, list) or not tables:
        raise ConfigError("upstreams must be tables, each begun by [[upstreams]]")
    found = tuple(_upstream(f"upstreams[{n}]", table, environment, defaults) for n, table in enumerate(tables))
    _refuse_repeated("the name", (upstream.name for upstream in found))
    _refuse_repeated("the model", (model for upstream in found for model in upstream.models))
    if sum(upstream.is_default for upstream in found) > 1:
        raise ConfigError("more than one of upstreams is the default")
    return found


def _upstream(spelled: str, table: object, environment: Mapping[str, str], defaults: Defaults) -> UpstreamSettings:
    entry = _entry(spelled, table)
    if not entry.name.isprintable() or not entry.name or "/" in entry.name:
        raise ConfigError(f"{spelled}.name must be printable text without a slash")
    if not entry.urls:
        raise ConfigError(f"{spelled}.urls must name at least one URL")
    if not entry.models and not entry.default:
        raise ConfigError(f"{spelled} serves nothing: give it models, or default = true")
    for model in entry.models:
        if not model or "*" in model[:-1]:
            raise ConfigError(f"{spelled}.models must be names, each whole or a beginning before one * at its end")
    return UpstreamSettings(
        name=entry.name,
        urls=tuple(base_url(f"{spelled}.urls[{number}]", url) for number, url in enumerate(entry.urls)),
        profile=_profile(f"{spelled}.profile", entry, defaults.encrypted_only),
        models=tuple(entry.models),
        api_key=_key(spelled, entry, environment),
        is_default=entry.default,
        think_tags=entry.think_tags,
        empty_output=entry.empty_output,
        continue_reasoning_only=entry.continue_reasoning_only,
        budget=_budget(f"{spelled}.budget", entry, defaults.budget),
        forward_authorization=entry.forward_authorization,
    )


def _entry(spelled: str, table: object) -> _Entry:
    if not isinstance(table, dict):
        raise ConfigError(f"{spelled} must be a table, begun by [[upstreams]]")
    _refuse_unknown(spelled, table, _Entry.__struct_fields__)
    try:
        return msgspec.convert(table, _Entry)
    except msgspec.ValidationError as error:
        raise unusable(spelled, error, _Entry) from None


def _profile(spelled: str, entry: _Entry, encrypted_only: EncryptedOnly) -> Profile:
    """The preset that the entry names, with what its table overrides; without a name the strict one of its dialect."""
    given = entry.profile if isinstance(entry.profile, dict) else {"preset": entry.profile}
    overrides = {name: value for name, value in given.items() if name != "preset"}
    preset_name = given.get("preset")
    if preset_name is None:
        preset = STRICT_CHAT if entry.dialect == "chat" else STRICT
    elif preset_name in PRESETS:
        preset = PRESETS[preset_name]
    else:
        raise ConfigError(f"{spelled} must be one of {', '.join(PRESETS)}, or a table whose preset is one of them")
    _refuse_unknown(spelled, overrides, Profile.__struct_fields__)
    if (entry.dialect or preset.dialect) != preset.dialect or "dialect" in overrides:
        raise ConfigError(f"{spelled} is of the dialect {preset.dialect}, which its upstream must speak")
    try:
        members = msgspec.to_builtins(preset) | {"encrypted_only": encrypted_only} | overrides
        return msgspec.convert(members, Profile)
    except msgspec.ValidationError as error:
        raise unusable(spelled, error, Profile) from None


def _budget(spelled: str, entry: _Entry, default: Budget) -> Budget:
    _refuse_unknown(spelled, entry.budget, Budget.__struct_fields__)
    return msgspec.structs.replace(default, **entry.budget)


def _key(spelled: str, entry: _Entry, environment: Mapping[str, str]) -> str | None:
    given = [name for name in ("api_key", "api_key_env", "api_key_file") if getattr(entry, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"{spelled}.{given[0]} and {spelled}.{given[1]} are both given; give one")
    if not given:
        return None
    if "@" in "".join(entry.urls):
        raise ConfigError(f"{spelled}.urls hold credentials, and {spelled}.{given[0]} is given too; give one of them")
    name = f"{spelled}.{given[0]}"
    if entry.api_key_env is not None:
        value = environment.get(entry.api_key_env)
        if value is None:
            raise ConfigError(f"{name} names a variable that is not set")
        return api_key(name, value)
    return api_key(name, held(name, entry.api_key_file) if entry.api_key is None else entry.api_key)


def _refuse_unknown(spelled: str, table: Mapping[str, object], known: Iterable[str]) -> None:
    for name in table:
        if name not in known:
            real = closest(name, known)
            hint = f"the closest is {real}" if real else f"it has {', '.join(known)}"
            raise ConfigError(f"{spelled} has no member of this name: {name}; {hint}")


def _refuse_repeated(what: str, values: Iterable[str]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise ConfigError(f"{what} {value!r} is given to more than one of upstreams")
