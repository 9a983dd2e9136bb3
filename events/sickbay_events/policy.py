"""The policy as data: every number of the rules, checked value by value (Rules 4 to 6).

A policy file is TOML with a section for each fold. `[host."openrouter.ai".breaker]` and
`[model."z-ai/glm-5.3".rejections]` override single values for one host or one model id; a model's value
wins over its host's. Durations are seconds (`_s`), shares are whole percent (`_percent`).
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias, get_args, get_type_hints

import msgspec
from msgspec import Meta

from .derived import RULES
from .errors import PolicyRefused
from .policy_gone import refuse_gone
from .redact import MARK, looks_secret

# Folds count in whole milliseconds: anything shorter would be a window of length 0.
Seconds: TypeAlias = Annotated[float, Meta(ge=0.001, le=30 * 86_400)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
Percent: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
Points: TypeAlias = Annotated[int, Meta(ge=1, le=100)]
Growth: TypeAlias = Annotated[float, Meta(ge=1, le=10)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class RejectionsPolicy(_Section, frozen=True, kw_only=True):
    """Rejections that name the model -> quarantine."""

    threshold: Annotated[Count, Meta(description="rejections in a row that quarantine a target")] = 2
    first_s: Annotated[Seconds, Meta(description="the first trial comes so long after it began")] = 1.0
    trial_every_s: Annotated[Seconds, Meta(description="its trials are at most so far apart")] = 12.0
    hold_s: Annotated[Seconds, Meta(description="length of a quarantine")] = 600.0
    growth: Annotated[Growth, Meta(description="factor by which each further quarantine in a row is longer")] = 1.0
    cap_s: Annotated[Seconds, Meta(description="longest quarantine that growth may reach")] = 3600.0


class CredentialPolicy(_Section, frozen=True, kw_only=True):
    """`auth` outcomes -> a hold of the credential."""

    threshold: Annotated[Count, Meta(description="refused attempts that hold a credential")] = 3
    replicas: Annotated[Count, Meta(description="replicas that must have seen it, where there are as many")] = 2
    window_s: Annotated[Seconds, Meta(description="how long credential strikes live after the newest one")] = 600.0
    hold_s: Annotated[Seconds, Meta(description="length of the first hold")] = 300.0
    growth: Annotated[Growth, Meta(description="factor by which each further hold in a row is longer")] = 2.0
    cap_s: Annotated[Seconds, Meta(description="longest hold")] = 3600.0


class ThrottlesPolicy(_Section, frozen=True, kw_only=True):
    """`rate_limited` and `quota` -> throttle."""

    hint_s: Annotated[Seconds, Meta(description="wait when a rate limit gives no hint")] = 5.0
    spread_percent: Annotated[Percent, Meta(description="a replica waits up to this much longer than the hint")] = 50
    needed: Annotated[Count, Meta(description="throttles in a row that hold the fleet")] = 2
    needed_named: Annotated[Count, Meta(description="the same if it states a wait and names its credential")] = 1
    above_max: Annotated[Count, Meta(description="what was got over raises that by so much at most")] = 30
    window_s: Annotated[Seconds, Meta(description="how long throttles count after the newest, or its wait")] = 10.0
    first_s: Annotated[Seconds, Meta(description="the first trial, where no wait was stated")] = 2.0
    trial_every_s: Annotated[Seconds, Meta(description="its trials are at most so far apart")] = 5.0
    growth: Annotated[Growth, Meta(description="factor by which each further hold without an answer is longer")] = 2.0
    cap_s: Annotated[Seconds, Meta(description="longest hold of a rate limit")] = 3600.0
    quota_hint_s: Annotated[Seconds, Meta(description="wait when a spent allowance names no reset")] = 900.0
    quota_cap_s: Annotated[Seconds, Meta(description="longest hold of a spent allowance")] = 21_600.0
    trial_max_s: Annotated[Seconds, Meta(description="a longer stated wait is tried before its end")] = 120.0
    quota_trial_max_s: Annotated[Seconds, Meta(description="the same for a spent allowance")] = 600.0


class BreakerPolicy(_Section, frozen=True, kw_only=True):
    """Faults -> breaker."""

    consecutive: Annotated[Count, Meta(description="faults in a row that open")] = 5
    fault_points: Annotated[Points, Meta(description="points a fault scores; an answer takes one off")] = 2
    first_s: Annotated[Seconds, Meta(description="the first trial comes so long after it opened")] = 2.0
    trial_every_s: Annotated[Seconds, Meta(description="its trials are at most so far apart")] = 8.0
    hold_s: Annotated[Seconds, Meta(description="length of the first hold")] = 30.0
    growth: Annotated[Growth, Meta(description="factor by which each further hold in a row is longer")] = 2.0
    cap_s: Annotated[Seconds, Meta(description="longest hold")] = 600.0
    jitter_percent: Annotated[int, Meta(ge=0, le=50, description="a hold is up to this much longer or shorter")] = 10
    retry_after_cap_s: Annotated[Seconds, Meta(description="longest hold a Retry-After may ask for")] = 3600.0
    impatience_s: Annotated[
        Seconds, Meta(description="a timeout under a shorter limit counts for its own replica only")
    ] = 10.0
    spread_models: Annotated[Count, Meta(description="open models of one credential that open it as one")] = 3
    spread_s: Annotated[Seconds, Meta(description="time that the spread rule looks back")] = 600.0
    slow_ttft_ms: Annotated[int, Meta(ge=0, le=86_400_000, description="a slower first content is slow; 0: off")] = 0


class DegradedPolicy(_Section, frozen=True, kw_only=True):
    """Empty, malformed and mangled answers -> degraded."""

    consecutive: Annotated[Count, Meta(description="bad answers in a row that hold")] = 12
    bad_points: Annotated[Points, Meta(description="points a bad answer scores; a clean one takes one off")] = 3
    first_s: Annotated[Seconds, Meta(description="the first trial comes so long after it was held")] = 2.0
    trial_every_s: Annotated[Seconds, Meta(description="its trials are at most so far apart")] = 8.0
    hold_s: Annotated[Seconds, Meta(description="length of the first hold")] = 30.0
    growth: Annotated[Growth, Meta(description="factor by which each further hold in a row is longer")] = 2.0
    cap_s: Annotated[Seconds, Meta(description="longest hold")] = 600.0
    clean_trials: Annotated[Count, Meta(description="clean leased trials that release")] = 3
    uncheckable: Annotated[Count, Meta(description="uncheckable answers on probation that end it")] = 20
    host_points: Annotated[Count, Meta(description="points of damaged encoding that hold a host")] = 36
    host_models: Annotated[Count, Meta(description="models with damaged encoding that it needs")] = 2
    host_bad: Annotated[Count, Meta(description="damaged answers each of those models needs")] = 3


class WarningsPolicy(_Section, frozen=True, kw_only=True):
    """What is worth a person's look and gates nothing."""

    novel_count: Annotated[Count, Meta(description="sightings in 24 h at which a novel signature warns")] = 2
    familiar_count: Annotated[Count, Meta(description="sightings in an hour at which a familiar one warns")] = 20
    fallback_percent: Annotated[Percent, Meta(description="share of a route's answers by fallback that warns")] = 50
    fallback_answers: Annotated[Count, Meta(description="answers in an hour that share needs")] = 20
    wrong_endpoint_count: Annotated[Count, Meta(description="wrong endpoints in an hour that warn")] = 3


class HealthPolicy(_Section, frozen=True, kw_only=True):
    """The one word for people."""

    idle_s: Annotated[Seconds, Meta(description="age of the evidence from which healthy is idle")] = 3600.0
    unknown_s: Annotated[Seconds, Meta(description="age of the evidence from which nothing is known")] = 86_400.0
    readiness_failures: Annotated[Count, Meta(description="failed readiness checks in a row that are unhealthy")] = 3


class WitnessesPolicy(_Section, frozen=True, kw_only=True):
    """How many replicas must have seen it."""

    good_answer_s: Annotated[Seconds, Meta(description="how long another replica's good answer speaks against")] = 600.0
    heard_s: Annotated[Seconds, Meta(description="a replica counts if heard of within this time")] = 600.0


class EvidencePolicy(_Section, frozen=True, kw_only=True):
    """What counts as evidence at all."""

    above: Annotated[Count, Meta(description="so many more in a row than it got over by itself hold")] = 3
    above_max: Annotated[Count, Meta(description="what it got over raises what is needed by so much at most")] = 15
    record_s: Annotated[Seconds, Meta(description="what it got over counts for once to twice so long")] = 43_200.0
    window_s: Annotated[Seconds, Meta(description="how long points live after the newest failure")] = 600.0
    queued_s: Annotated[Seconds, Meta(description="an outcome that waited longer changes no points")] = 5.0
    same_request_s: Annotated[Seconds, Meta(description="a repeat of one request counts once in this time")] = 60.0
    took_s: Annotated[Seconds, Meta(description="assumed length of a call that does not say")] = 120.0
    forget_s: Annotated[Seconds, Meta(description="growth is forgotten after this long without a hold")] = 600.0
    probation_s: Annotated[Seconds, Meta(description="probation ends after this long without evidence")] = 3600.0


class RampPolicy(_Section, frozen=True, kw_only=True):
    """How replicas come back after a breaker or a fleet throttle."""

    part: Annotated[Count, Meta(description="the ramp is this part of the time it was held")] = 20
    max_s: Annotated[Seconds, Meta(description="the longest ramp")] = 4.0
    percents: Annotated[
        tuple[Percent, Percent, Percent], Meta(description="share of the ring that is in, step by step")
    ] = (10, 25, 50)
    replicas: Annotated[Count, Meta(description="smaller fleets have no ramp")] = 4


class TrialsPolicy(_Section, frozen=True, kw_only=True):
    """Leased trials."""

    equal: Annotated[Points, Meta(description="so many first trials are equally far apart, then it doubles")] = 3
    calls: Annotated[Count, Meta(description="one of so many calls is a trial, where that is rarer")] = 5
    pace_max_s: Annotated[Seconds, Meta(description="how far apart that may make them")] = 600.0
    held_part: Annotated[Count, Meta(description="trials are this part of the time held apart, if that is more")] = 80
    held_part_own: Annotated[Count, Meta(description="the same for a replica's own hold")] = 20
    held_max_s: Annotated[Seconds, Meta(description="how far apart that, or a Retry-After, may make them")] = 120.0
    behind_s: Annotated[Seconds, Meta(description="the replica whose trial failed last waits so much longer")] = 5.0
    grace_s: Annotated[Seconds, Meta(description="a lease outlives its attempt's limit by this")] = 5.0
    lease_max_s: Annotated[Seconds, Meta(description="longest lease between two renewals")] = 130.0
    self_grant_s: Annotated[Seconds, Meta(description="one trial this often where the service is silent")] = 30.0


class BoundsPolicy(_Section, frozen=True, kw_only=True):
    """Limits of the state."""

    idle_s: Annotated[Seconds, Meta(description="a target without events for this long leaves the state")] = 172_800.0
    targets: Annotated[Count, Meta(description="targets in the state at most")] = 50_000
    new_targets_per_hour: Annotated[Count, Meta(description="new targets that one replica may bring")] = 2_000


class ShadowPolicy(_Section, frozen=True, kw_only=True):
    """Fold, tell, but let pass."""

    all: Annotated[bool, Meta(description="no rule is enforced, but operators' acts are")] = False
    rules: Annotated[tuple[str, ...], Meta(description=f"rules not enforced, of {', '.join(RULES)}")] = ()


_SECTIONS: Final[dict[str, type[_Section]]] = {
    "rejections": RejectionsPolicy,
    "credential": CredentialPolicy,
    "throttles": ThrottlesPolicy,
    "breaker": BreakerPolicy,
    "degraded": DegradedPolicy,
    "warnings": WarningsPolicy,
    "health": HealthPolicy,
    "witnesses": WitnessesPolicy,
    "evidence": EvidencePolicy,
    "ramp": RampPolicy,
    "trials": TrialsPolicy,
    "bounds": BoundsPolicy,
    "shadow": ShadowPolicy,
}
_PER_TARGET: Final = ("rejections", "credential", "throttles", "breaker", "degraded", "health", "shadow")
"""Sections that a host or a model may override; the others are the fleet's."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
OTHER_KEYS: Final[tuple[tuple[str, object, str, str], ...]] = (
    (
        "single_credential",
        (),
        "a list of host names",
        "hosts at which a provider named without #alias is one credential",
    ),
    ("host", {}, f"a table a host name of {', '.join(_PER_TARGET)}", "values that are others at one host"),
    ("model", {}, f"a table a model id of {', '.join(_PER_TARGET)}", "the same for one model id; wins over its host's"),
)
"""What a policy file has beside its sections: (key, default, accepted form, what it does)."""

_ORDERED: Final = (
    ("rejections", "hold_s", "cap_s"),
    ("credential", "hold_s", "cap_s"),
    ("throttles", "hint_s", "cap_s"),
    ("throttles", "quota_hint_s", "quota_cap_s"),
    ("breaker", "hold_s", "cap_s"),
    ("degraded", "hold_s", "cap_s"),
    ("health", "idle_s", "unknown_s"),
    ("throttles", "needed_named", "needed"),
)
"""Section and two of its keys, of which the first may not be above the second."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Every number of the rules. `Policy()` has the defaults."""

    rejections: RejectionsPolicy = RejectionsPolicy()
    credential: CredentialPolicy = CredentialPolicy()
    throttles: ThrottlesPolicy = ThrottlesPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    degraded: DegradedPolicy = DegradedPolicy()
    warnings: WarningsPolicy = WarningsPolicy()
    health: HealthPolicy = HealthPolicy()
    witnesses: WitnessesPolicy = WitnessesPolicy()
    evidence: EvidencePolicy = EvidencePolicy()
    ramp: RampPolicy = RampPolicy()
    trials: TrialsPolicy = TrialsPolicy()
    bounds: BoundsPolicy = BoundsPolicy()
    shadow: ShadowPolicy = ShadowPolicy()
    single_credential: tuple[str, ...] = ()
    """Hosts at which a provider named without `#alias` is one credential."""
    host: dict[str, dict[str, dict[str, Any]]] = {}
    model: dict[str, dict[str, dict[str, Any]]] = {}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Policy:
        """Check a policy given as data. Raises `PolicyRefused` naming key, value and accepted form."""
        made: dict[str, Any] = {}
        for key, value in data.items():
            if key not in _SECTIONS and isinstance(value, Mapping):
                refuse_gone(key, key, value)
            if key in _SECTIONS:
                made[key] = _section(key, _SECTIONS[key], _table(key, value))
            elif key in ("host", "model"):
                made[key] = dict(_overrides(key, _table(key, value)))
            elif key == "single_credential":
                made[key] = _converted(key, value, tuple[str, ...], "a list of host names")
            else:
                raise _unknown(key, key, (*_SECTIONS, "host", "model", "single_credential"))
        policy = cls(**made)
        policy._check_order()
        return policy

    def _check_order(self) -> None:
        """What one value says of another, for the fleet and for each override on top of it."""
        tables = [("", self)]
        tables += [(f"host.{name}.", self.for_target(name, "")) for name in self.host]
        tables += [(f"model.{name}.", self.for_target("", name)) for name in self.model]
        for path, policy in tables:
            for section, low, high in _ORDERED:
                values = getattr(policy, section)
                if getattr(values, low) > getattr(values, high):
                    accepted = f"at most {section}.{high}, which is {getattr(values, high):g}"
                    raise PolicyRefused(f"{path}{section}.{low}", getattr(values, low), accepted)

    @classmethod
    def from_toml(cls, text: str | bytes) -> Policy:
        """Read a policy file. Raises `PolicyRefused`; for text that is no TOML its key is `(file)`."""
        try:
            data = tomllib.loads(text.decode() if isinstance(text, bytes) else text)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolicyRefused("(file)", str(error), "TOML") from error
        refuse_secrets(data)
        return cls.from_data(data)

    def to_data(self) -> dict[str, Any]:
        """The whole policy as plain data, as `PolicyChanged` carries it; `from_data` reads it back. Equal policies give
        equal bytes: tables of hosts and models come in the order of their names."""
        data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        for name in ("host", "model"):
            data[name] = _sorted(data[name])
        return data

    def for_target(self, host: str, model: str) -> Policy:
        """The policy as it holds for one target: the host's overrides, then the model's."""
        by_host, by_model = self.host.get(host), self.model.get(model)
        if not by_host and not by_model:
            return self
        changed: dict[str, Any] = {}
        for table in (by_host or {}, by_model or {}):
            for name, values in table.items():
                changed[name] = msgspec.structs.replace(changed.get(name, getattr(self, name)), **values)
        return msgspec.structs.replace(self, **changed)

    def enforces(self, rule: str) -> bool:
        """Whether holds of this rule are enforced; an operator's always are."""
        return rule == "operator" or not (self.shadow.all or rule in self.shadow.rules)


def policy_differences(old: Policy, new: Policy) -> list[tuple[str, object, object]]:
    """Each value in which two policies differ: (dotted key, old, new); None where an override is not there."""
    found: list[tuple[str, object, object]] = []

    def walk(path: tuple[str, ...], one: object, other: object) -> None:
        if isinstance(one, Mapping) or isinstance(other, Mapping):
            before = one if isinstance(one, Mapping) else {}
            after = other if isinstance(other, Mapping) else {}
            for key in dict.fromkeys([*before, *after]):
                walk((*path, key), before.get(key), after.get(key))
        elif one != other:
            found.append((dotted(path), one, other))

    walk((), old.to_data(), new.to_data())
    return found


def dotted(path: Iterable[str]) -> str:
    """A key as a policy file spells it: a part that is no bare key stands in quotes."""
    return ".".join(part if _BARE.fullmatch(part) else quoted(part) for part in path)


def quoted(text: str) -> str:
    """A text as TOML has it. JSON's form serves, but for the one control character that TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def refuse_secrets(data: object, path: tuple[str, ...] = ()) -> None:
    """Refuse a policy with a name or text that looks like a key or token: everybody may read the log (Rule 7).

    Raises `PolicyRefused`, which does not repeat it.
    """
    if isinstance(data, Mapping):
        for key, value in data.items():
            refuse_secrets(str(key), path)
            refuse_secrets(value, (*path, str(key)))
    elif isinstance(data, list | tuple):
        for value in data:
            refuse_secrets(value, path)
    elif isinstance(data, str) and looks_secret(data):
        raise PolicyRefused(
            dotted(path) or "(file)", MARK, "a name: no key and no token, of which env:NAME is the form"
        )


def keys() -> Iterator[tuple[str, object, str, str]]:
    """Every key of a policy file: (dotted key, default, accepted form, what it does)."""
    for name, section in _SECTIONS.items():
        for field in msgspec.structs.fields(section):
            hint = get_type_hints(section, include_extras=True)[field.name]
            yield f"{name}.{field.name}", field.default, _accepted(hint), _meta(hint, "description") or ""


def _section(path: str, section: type[_Section], table: Mapping[str, Any]) -> _Section:
    return section(**dict(_values(path, section, table)))


def _values(path: str, section: type[_Section], table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(section, include_extras=True)
    refuse_gone(path.rpartition(".")[2], path, table)
    for key, value in table.items():
        if key not in hints:
            raise _unknown(f"{path}.{key}", key, tuple(hints))
        yield key, _converted(f"{path}.{key}", value, hints[key], _accepted(hints[key]))
        if section is ShadowPolicy and key == "rules":
            for rule in value:
                if rule not in RULES:
                    raise PolicyRefused(f"{path}.{key}", rule, f"one of {', '.join(RULES)}")


def _overrides(kind: str, table: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    for name, sections in table.items():
        made: dict[str, dict[str, Any]] = {}
        for section, values in _table(f"{kind}.{name}", sections).items():
            if section not in _PER_TARGET:
                raise _unknown(f"{kind}.{name}.{section}", section, _PER_TARGET)
            path = f"{kind}.{name}.{section}"
            made[section] = dict(_values(path, _SECTIONS[section], _table(path, values)))
        yield name, made


def _table(path: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PolicyRefused(path, value, "a table")
    return value


def _converted(path: str, value: object, hint: Any, accepted: str) -> Any:
    try:
        if isinstance(value, bool) and hint is not bool and "bool" not in accepted and "true" not in accepted:
            raise PolicyRefused(path, value, accepted)
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise PolicyRefused(path, value, accepted) from error


def _unknown(path: str, key: str, known: tuple[str, ...]) -> PolicyRefused:
    near = difflib.get_close_matches(key, known, 1)
    return PolicyRefused(path, key, f"{near[0]} (did you mean that?)" if near else f"one of {', '.join(known)}")


def _meta(hint: Any, name: str) -> Any:
    found = [getattr(meta, name) for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta)]
    return next((value for value in reversed(found) if value is not None), None)


def _accepted(hint: Any) -> str:
    base = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
    if base is bool:
        return "true or false"
    if base is int or base is float:
        low = _meta(hint, "ge") if _meta(hint, "ge") is not None else _meta(hint, "gt")
        word = "above" if _meta(hint, "gt") is not None else "from"
        noun = "a whole number" if base is int else "a number"
        return f"{noun} {word} {low:,} to {_meta(hint, 'le'):,}"
    inner = get_args(base)
    if inner and inner[-1] is Ellipsis:
        return "a list of texts"
    return f"a list of {len(inner)} items, each {_accepted(inner[0])}"


def _sorted(table: dict[str, Any]) -> dict[str, Any]:
    return {key: _sorted(value) if isinstance(value, dict) else value for key, value in sorted(table.items())}
