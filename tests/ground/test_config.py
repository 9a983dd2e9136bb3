"""Settings: one table, and an error that names the variable and the accepted form."""

from __future__ import annotations

import pytest

from sickbay.config import PREFIX, SettingRefused, Settings, setting_rows


def test_given_wins_over_environment_wins_over_default() -> None:
    """A setting is what was given, else the environment's, else the default; an empty variable is not set."""
    environ = {"SICKBAY_NATS": "nats://box", "SICKBAY_REPLICA": "", "SICKBAY_PORT": "5000", "SICKBAY_LOG_LEVEL": "info"}
    settings = Settings.from_environment(environ, nats="nats://other")
    assert (settings.nats, settings.port, settings.log_level) == ("nats://other", 5000, "INFO")
    assert settings.replica == "" and settings.replica_name


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "x"), ("PORT", "70000"), ("LOG_LEVEL", "loud"), ("HTTP", "nowhere"), ("HTTP", "h:99999")],
)
def test_a_bad_setting_names_itself_and_the_accepted_form(name: str, value: str) -> None:
    """The error says which variable, which value, and what would be accepted."""
    row = next(row for row in setting_rows() if row.name == PREFIX + name)
    with pytest.raises(SettingRefused) as caught:
        _ = Settings.from_environment({PREFIX + name: value}).http_address
    assert caught.value.name == row.name and repr(value) in str(caught.value)
    assert row.accepted in str(caught.value)


def test_every_setting_is_in_the_table() -> None:
    """The table that feeds help and documents has a name, a form and a sentence for every setting."""
    rows = list(setting_rows())
    assert {row.field for row in rows} == set(Settings.__struct_fields__)
    assert all(row.accepted and row.says for row in rows)
