"""The policy (Rules 4 to 6): every key is checked, refused as a whole, and there and back as data."""

from __future__ import annotations

import json
import math
import re
from typing import Any, get_type_hints

import msgspec
import pytest

from sickbay_events import Policy, PolicyRefused
from sickbay_events.derived import RULES
from sickbay_events.policy import _ORDERED, keys
from sickbay_events.policy_gone import GONE

KEYS = {key: (default, accepted, meaning) for key, default, accepted, meaning in keys()}
NUMBERS = [key for key, (default, _, _) in KEYS.items() if type(default) in (int, float)]
LISTS = [key for key, (default, _, _) in KEYS.items() if isinstance(default, tuple)]
SWITCHES = [key for key, (default, _, _) in KEYS.items() if isinstance(default, bool)]


def data(key: str, value: object) -> dict[str, Any]:
    """One value; the partner of a pair that must be in order gets the same one."""
    section, name = key.split(".")
    partners = {pair[1] if pair[0] == name else pair[0] for at, *pair in _ORDERED if at == section and name in pair}
    return {section: {name: value, **dict.fromkeys(partners, value)}}


def bounds(key: str) -> tuple[Any, Any]:
    """The lowest and the highest accepted value, as the type says them."""
    section, name = key.split(".")
    hint = get_type_hints(type(getattr(Policy(), section)), include_extras=True)[name]
    metas = [meta for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta)]
    assert not any(meta.gt is not None or meta.lt is not None for meta in metas), "bounds are accepted themselves"
    return (
        next(meta.ge for meta in metas if meta.ge is not None),
        next(meta.le for meta in metas if meta.le is not None),
    )


def refused(policy: dict[str, Any]) -> PolicyRefused:
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_data(policy)
    assert caught.value.key in str(caught.value)
    assert caught.value.accepted in str(caught.value)
    return caught.value


def test_the_defaults_are_those_of_the_rules() -> None:
    policy = Policy()
    assert (policy.rejections.threshold, policy.rejections.first_s, policy.rejections.hold_s) == (2, 1, 600)
    assert (policy.breaker.consecutive, policy.breaker.hold_s, policy.breaker.cap_s) == (5, 30, 600)
    assert (policy.degraded.consecutive, policy.degraded.bad_points, policy.degraded.host_points) == (12, 3, 36)
    assert (policy.rejections.threshold, policy.rejections.first_s, policy.rejections.trial_every_s) == (2, 1, 12)
    assert (policy.breaker.consecutive, policy.breaker.fault_points, policy.breaker.first_s) == (5, 2, 2)
    assert (policy.breaker.trial_every_s, policy.breaker.hold_s, policy.breaker.cap_s) == (8, 30, 600)
    assert (policy.degraded.consecutive, policy.degraded.bad_points, policy.degraded.host_points) == (12, 3, 36)
    assert (policy.throttles.needed, policy.throttles.needed_named, policy.throttles.above_max) == (2, 1, 30)
    assert (policy.evidence.above, policy.evidence.above_max, policy.evidence.record_s) == (3, 15, 43_200)
    assert (policy.rejections.hold_s, policy.evidence.window_s, policy.trials.behind_s) == (600, 600, 5)
    assert (policy.ramp.part, policy.ramp.max_s) == (20, 4)
    assert (policy.throttles.hint_s, policy.throttles.cap_s, policy.throttles.quota_cap_s) == (5, 3600, 21_600)
    assert (policy.bounds.targets, policy.bounds.new_targets_per_hour) == (50_000, 2_000)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_says_what_it_does_and_accepts_its_default(key: str) -> None:
    default, accepted, meaning = KEYS[key]
    assert meaning, "a person reads this in `policy explain`"
    assert accepted
    section, name = key.split(".")
    made = Policy.from_data({section: {name: list(default) if isinstance(default, tuple) else default}})
    assert made == Policy()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["5", None, {"a": 1}, {}, [[]], [None, 1]], ids=repr)
def test_a_value_of_a_wrong_type_is_refused_with_key_value_and_accepted_form(key: str, value: object) -> None:
    error = refused(data(key, value))
    assert (error.key, error.value, error.accepted) == (key, value, KEYS[key][1])


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_accepted_at_its_bounds_and_refused_beyond_them(key: str) -> None:
    low, high = bounds(key)
    section, name = key.split(".")
    below, above = (low - 1, high + 1) if isinstance(KEYS[key][0], int) else (low / 2, math.nextafter(high, math.inf))
    for value in (low, high):
        assert getattr(getattr(Policy.from_data(data(key, value)), section), name) == value
    for value in (below, above):
        error = refused(data(key, value))
        assert (error.key, error.value, error.accepted) == (key, value, KEYS[key][1])
    assert f"{low:,} to {high:,}" in KEYS[key][1], "the accepted form names both bounds"


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, -math.inf])
def test_a_switch_or_a_number_that_is_none_is_no_number(key: str, value: object) -> None:
    error = refused(data(key, value))
    assert error.key == key
    assert error.accepted == KEYS[key][1]


@pytest.mark.parametrize("key", [key for key in NUMBERS if isinstance(KEYS[key][0], int)])
def test_a_count_is_whole(key: str) -> None:
    assert refused(data(key, 2.5)).accepted == KEYS[key][1]


@pytest.mark.parametrize("key", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_a_switch_is_true_or_false(key: str, value: object) -> None:
    error = refused(data(key, value))
    assert (error.key, error.accepted) == (key, "true or false")


def test_every_kind_of_key_is_met_above() -> None:
    assert set(NUMBERS) | set(LISTS) | set(SWITCHES) == set(KEYS)
    assert NUMBERS
    assert LISTS
    assert SWITCHES


@pytest.mark.parametrize("value", [[10, 25], [10, 25, 50, 100], [0, 25, 50], [10, 25, 101], [10.5, 25, 50], "10"])
def test_the_ramp_has_three_steps_of_whole_percent(value: object) -> None:
    error = refused(data("ramp.percents", value))
    assert error.key == "ramp.percents"
    assert error.accepted == "a list of 3 items, each a whole number from 1 to 100"


def test_shadow_names_rules_that_exist() -> None:
    error = refused(data("shadow.rules", ["breaker", "braker"]))
    assert (error.key, error.value) == ("shadow.rules", "braker")
    assert all(rule in error.accepted for rule in RULES)
    policy = Policy.from_data(data("shadow.rules", ["breaker"]))
    assert not policy.enforces("breaker")
    assert policy.enforces("quarantine")
    # An operator's act is what a person asked for, and no experiment.
    assert Policy.from_data({"shadow": {"all": True, "rules": list(RULES)}}).enforces("operator")


@pytest.mark.parametrize(
    ("policy", "key", "accepted"),
    [
        ({"breakers": {}}, "breakers", "breaker (did you mean that?)"),
        ({"someday": 1}, "someday", "one of rejections, "),
        ({"breaker": {"hold": 1}}, "breaker.hold", "hold_s (did you mean that?)"),
        ({"breaker": {"zzz": 1}}, "breaker.zzz", "one of consecutive, "),
        ({"breaker": 5}, "breaker", "a table"),
        ({"single_credential": "openrouter.ai"}, "single_credential", "a list of host names"),
        ({"single_credential": [1]}, "single_credential", "a list of host names"),
        ({"host": []}, "host", "a table"),
        ({"host": {"h": 1}}, "host.h", "a table"),
        ({"host": {"h": {"breaker": 1}}}, "host.h.breaker", "a table"),
        ({"host": {"h": {"ramp": {}}}}, "host.h.ramp", "one of rejections, "),
        ({"model": {"m": {"breaker": {"hold_s": 0}}}}, "model.m.breaker.hold_s", "a number from 0.001 to 2,592,000"),
        ({"model": {"m": {"shadow": {"rules": ["x"]}}}}, "model.m.shadow.rules", "one of quarantine, "),
    ],
)
def test_what_no_policy_has_is_refused_with_its_path(policy: dict[str, Any], key: str, accepted: str) -> None:
    error = refused(policy)
    assert error.key == key
    assert error.accepted.startswith(accepted)


@pytest.mark.parametrize(("section", "low", "high"), _ORDERED, ids=lambda value: value)
def test_two_values_that_contradict_each_other_are_refused(section: str, low: str, high: str) -> None:
    default = getattr(getattr(Policy(), section), high)
    for policy, path in (
        ({section: {low: default + 1}}, ""),
        ({"host": {"h": {section: {low: default + 1}}}}, "host.h."),
        ({"model": {"m": {section: {low: default + 1}}}}, "model.m."),
    ):
        if path and section not in ("rejections", "credential", "throttles", "breaker", "degraded", "health"):
            continue
        error = refused(policy)
        assert error.key == f"{path}{section}.{low}"
        assert error.accepted == f"at most {section}.{high}, which is {default:g}"
    assert Policy.from_data({section: {low: default, high: default}})


@pytest.mark.parametrize("key", GONE)
def test_a_key_of_the_rules_before_points_is_refused_with_what_to_write_now(key: str) -> None:
    """Also for one host or one model; each key that the sentence names is one."""
    section, name = key.split(".")
    for policy, path in (
        ({section: {name: 5}}, key),
        ({"host": {"h": {section: {name: 5}}}}, f"host.h.{key}"),
        ({"model": {"m": {section: {name: 5}}}}, f"model.m.{key}"),
    ):
        if path != key and section not in ("rejections", "throttles", "breaker", "degraded"):
            continue
        error = refused(policy)
        assert (error.key, error.accepted) == (path, GONE[key])
    assert key not in KEYS
    assert error.accepted.startswith("a policy without this key: ")
    named = re.findall(r"[a-z]+\.[a-z_]+", error.accepted)
    assert set(named) <= set(KEYS)
    assert named or error.accepted.endswith("leave it out")


def test_an_invalid_value_refuses_the_whole_policy() -> None:
    refused({"rejections": {"threshold": 5}, "breaker": {"consecutive": 0}})


FILE = """
single_credential = ["api.x.ai"]

[rejections]
threshold = 3
hold_s = 300            # whole numbers do for seconds

[shadow]
rules = ["degraded"]

[host."openrouter.ai".breaker]
consecutive = 9
hold_s = 12.5

[model."z-ai/glm-5.3".breaker]
hold_s = 60

[model."z-ai/glm-5.3".rejections]
first_s = 60
"""


def test_a_toml_file_is_the_policy_with_overrides_per_host_and_per_model() -> None:
    policy = Policy.from_toml(FILE)
    assert policy.single_credential == ("api.x.ai",)
    assert (policy.rejections.threshold, policy.rejections.hold_s) == (3, 300.0)
    at_host = policy.for_target("openrouter.ai", "other")
    assert (at_host.breaker.consecutive, at_host.breaker.hold_s) == (9, 12.5)
    both = policy.for_target("openrouter.ai", "z-ai/glm-5.3")
    assert (both.breaker.consecutive, both.breaker.hold_s) == (9, 60.0), "the model's value wins over its host's"
    assert (both.rejections.threshold, both.rejections.first_s) == (3, 60.0), "what is not overridden stays"
    assert policy.for_target("api.x.ai", "other") is policy


def test_a_file_that_is_no_toml_is_refused_as_a_file() -> None:
    with pytest.raises(PolicyRefused, match=r"line 2") as caught:
        Policy.from_toml("[breaker]\nhold_s = = 3")
    assert caught.value.key == "(file)"


def test_an_empty_file_is_the_default_policy() -> None:
    assert Policy.from_toml("") == Policy()


VARIANTS = [
    Policy(),
    Policy.from_toml(FILE),
    Policy.from_data({"shadow": {"all": True, "rules": ["breaker"]}, "ramp": {"percents": [1, 2, 3]}}),
]


@pytest.mark.parametrize("policy", VARIANTS, ids=["defaults", "file", "shadow"])
def test_a_policy_comes_back_from_its_data_and_from_json(policy: Policy) -> None:
    plain = policy.to_data()
    assert Policy.from_data(plain) == policy
    assert json.loads(json.dumps(plain)) == plain, "plain data: what the log holds is what was sent"
    assert Policy.from_data(json.loads(json.dumps(plain))).to_data() == plain


def test_equal_policies_have_equal_bytes_in_whatever_order_their_tables_stand() -> None:
    """A state that begins from a snapshot has sorted keys; one from the log has them as the file had."""
    one = Policy.from_toml(
        b'[host."b.example".rejections]\nhold_s = 5\ncap_s = 9\n[host."b.example".breaker]\nhold_s = 5\n'
        b'[host."a.example".breaker]\nhold_s = 5\n[model.z.breaker]\nhold_s = 5\n[model.y.breaker]\nhold_s = 5\n'
    )
    other = Policy.from_toml(
        b'[model.y.breaker]\nhold_s = 5\n[model.z.breaker]\nhold_s = 5\n[host."a.example".breaker]\nhold_s = 5\n'
        b'[host."b.example".breaker]\nhold_s = 5\n[host."b.example".rejections]\ncap_s = 9\nhold_s = 5\n'
    )
    assert one == other
    assert msgspec.json.encode(one.to_data()) == msgspec.json.encode(other.to_data())
    assert Policy.from_data(one.to_data()) == one
