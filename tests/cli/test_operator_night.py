"""What an operator types at three in the morning, and what is said: acts, names, times, one provider's holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cli_runs import Done, Serve, serve_fixture, sickbay  # noqa: F401 - a fixture is used by its name
from sickbay.cli.base import console
from sickbay.cli.look import held_table
from sickbay.service.known import is_anything_heard, is_known, near_names
from sickbay_events import Scope, Target
from sickbay_projections.testing import Log, given
from waiting import until_sync


@pytest.fixture(scope="module", name="run")
def run_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Done]]:
    """Commands against services whose fleet has two models of one provider held by their credential's refusals."""
    data = str(tmp_path_factory.mktemp("night") / "data")

    def run(*arguments: str) -> Done:
        return sickbay(*arguments, "--data", data)

    with Serve("--data", data):
        for model in ("codestral", "pixtral"):
            for replica in ("router-1", "router-2", "router-1"):
                said = run("report", "api.mistral.ai", model, "--kind", "auth", "--status", "401", "--replica", replica)
                assert said.returncode == 0, said.stderr
        until_sync(lambda: "pixtral" in run("status").stdout and "codestral" in run("status").stdout, "both holds")
        yield run


def test_a_provider_lists_what_of_it_is_held_and_why(run: Callable[..., Done]) -> None:
    """The first command of the alerts' annotations: sickbay explain PROVIDER."""
    said = run("explain", "api.mistral.ai").stdout
    for model in ("codestral", "pixtral"):
        (line,) = [line for line in said.splitlines() if line.startswith(f"api.mistral.ai  {model} ")]
        assert "credential" in line and "3 x auth (401)" in line


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        (("api.mistral.ai", "codestrall"), "`api.mistral.ai codestral`"),
        (("mistral", "codestral"), "`api.mistral.ai codestral`"),
        (("api.mistral.ia", "pixtral"), "`api.mistral.ai pixtral`"),
        (("api.mistrall.ai",), "`api.mistral.ai`"),
        (("Api.Mistral.Ai", "Codestral"), "`api.mistral.ai codestral`"),
    ],
)
@pytest.mark.parametrize("act", [("clear",), ("hold", "--for", "5m"), ("allow", "--for", "5m")])
def test_a_wrong_name_is_told_with_the_right_one_and_leaves_nothing(
    run: Callable[..., Done], named: tuple[str, ...], meant: str, act: tuple[str, ...]
) -> None:
    before = run("status", "--all", "--json").stdout.count('"provider"')
    said = run(act[0], *named, *act[1:], "--reason", "new key")
    assert said.returncode == 1 and "did you mean" in said.stderr and meant in said.stderr
    assert run("status", "--all", "--json").stdout.count('"provider"') == before


def test_explain_says_that_a_name_is_unknown_and_which_is_near(run: Callable[..., Done]) -> None:
    said = run("explain", "api.mistral.ai", "codestrall").stdout
    assert "nothing is known of api.mistral.ai codestrall; did you mean api.mistral.ai codestral?" in said


def test_a_name_still_to_come_is_held_with_new(run: Callable[..., Done]) -> None:
    assert run("hold", "api.x.ai", "grok-9", "--for", "5m", "--reason", "not yet").returncode == 1
    assert run("hold", "api.x.ai", "grok-9", "--for", "5m", "--reason", "not yet", "--new").returncode == 0
    assert "grok-9" in run("status").stdout
    said = run("clear", "api.x.ai", "grok-9", "--reason", "it came")
    assert said.returncode == 0 and "ended: api.x.ai grok-9 hold by" in said.stdout
    until_sync(lambda: "grok-9" not in run("status").stdout, "no row of what never was")


def test_acts_say_what_they_change_end_or_leave_without_effect(run: Callable[..., Done]) -> None:
    """The story of one target, from an allow to the clear of the whole provider."""
    host, model = "api.mistral.ai", "pixtral"
    said = run("allow", host, model, "--for", "10m", "--reason", "let it pass").stdout
    assert f"let pass for as long: {host} {model} credential since" in said
    said = run("hold", host, model, "--for", "1h", "--reason", "odd", "--actor", "bob").stdout
    assert "replaced: allow by" in said and "let it pass" in said
    assert run("hold", host, "--for", "1h", "--reason", "invoice", "--actor", "ana").returncode == 0
    said = run("allow", host, model, "--for", "10m", "--reason", "let it pass").stdout
    assert f"NO EFFECT while {host} is held by ana: invoice" in said and f"`sickbay clear {host}` ends it" in said
    said = run("clear", host, model, "--reason", "new key").stdout
    assert f"ended: {host} {model} allow by" in said and f"still held: {host} hold by ana: invoice" in said
    said = run("clear", host, "--reason", "paid").stdout
    assert f"ended: {host} hold by ana: invoice" in said and f"ended: {host} codestral credential" in said
    said = run("clear", host, "--reason", "again").stdout
    assert "nothing of it was held" in said


def test_what_happened_is_told_with_who_did_it(run: Callable[..., Done]) -> None:
    """By the commands of the runbook, for the fleet and for one target."""
    model = ("api.mistral.ai", "codestral")
    assert run("hold", *model, "--for", "1h", "--reason", "strange answers", "--actor", "bob").returncode == 0
    assert run("hold", *model, "--for", "2h", "--reason", "a longer one", "--actor", "ana").returncode == 0
    said = run("replay", "live", "--from", "10 minutes ago").stdout
    for line in ("held by operator, bob: strange answers", "released (operator) by replaced, ana: a longer one"):
        assert line in said
    story = run("explain", *model).stdout
    assert "released from operator by replaced" in story and "bob" in story
    assert run("clear", *model, "--reason", "done", "--actor", "ana").returncode == 0
    until_sync(
        lambda: _acts(run("history", *model).stdout)[-3:] == ["hold", "hold", "clear"], "the history has the acts"
    )
    shown = run("history", *model).stdout
    assert "ana: a longer one" in shown and "replaced" in shown and "still held" not in shown


def test_effects_are_those_that_were_told_not_of_a_part_of_the_log(run: Callable[..., Done]) -> None:
    """Of the model's own events one replica rejects it, with nobody else heard of: a fold of them alone would hold it.
    The fleet, which hears others on another model, holds that one replica's word and says so."""
    for replica in ("router-1", "router-2", "router-3"):
        run("report", "api.groq.com", "well", "--kind", "ok", "--replica", replica)
    for _ in range(2):
        run("report", "api.groq.com", "gone", "--kind", "permission_model", "--status", "403", "--replica", "router-3")
    told = "held by quarantine for router-3 alone until"
    until_sync(lambda: told in run("explain", "api.groq.com", "gone").stdout, "what was told")


def _acts(shown: str) -> list[str]:
    return [line.split()[1] for line in shown.splitlines() if line[:2] == "20" and line[19:20] == "Z"]


def test_an_end_and_a_place_can_be_times_of_day(run: Callable[..., Done]) -> None:
    assert run("hold", "api.x.ai", "--until", "03:12", "--reason", "night", "--new").returncode == 0
    assert run("explain", "api.x.ai", "--at", "yesterday 14:00").returncode in (0, 1)
    said = run("hold", "api.x.ai", "--until", "25:12", "--reason", "night")
    assert said.returncode == 2 and "'25:12' is not accepted" in said.stderr


@pytest.mark.parametrize("columns", [80, 100])
def test_long_names_stay_whole_where_columns_are_few(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What is copied from a terminal is a name."""
    provider, model = "bedrock-runtime.eu-central-1.amazonaws.com", "anthropic.claude-sonnet-4-5-20250929-v1:0"
    out = console()
    cells: list[tuple[object, ...]] = [
        (provider, model, "quarantined", "03:12:05", "9 min 12 s", "2 x model_unavailable (404)", 4711),
        ("api.x.ai", "(all of it)", "held by operator", "11-29 23:12", "2 d 4 h", "ana: invoice", 4712),
    ]
    out.width = columns
    out.print(held_table(cells, columns))
    shown = capsys.readouterr().out
    assert provider in shown and model in shown and "since" in shown and "03:12:05" in shown
    assert all(len(line) <= columns for line in shown.splitlines())


def test_what_fits_is_a_table_with_a_row_each(capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    out.width = 80
    cells: list[tuple[object, ...]] = [("api.x.ai", "grok-4", "throttled", "03:12:05", "52 s", "2 x rate_limited", 7)]
    out.print(held_table(cells, 80))
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["provider", "model", "state", "since", "left", "because", "seq"]
    assert row.startswith("api.x.ai  grok-4  throttled  03:12:05")


def test_an_operators_act_alone_makes_no_name_known() -> None:
    """Else a typing error would be known from its first use on."""
    log = Log(Target("openrouter.ai", "z-ai/glm-5.3"))
    fleet = given(log.override("clear", at_s=1)).fleet
    assert not is_known(fleet, log.target.scope, log.ms(2))
    fleet.apply(log.outcome("cancelled", at_s=3))
    assert is_known(fleet, log.target.scope, log.ms(4)) and is_known(fleet, Scope("openrouter.ai"), log.ms(4))
    assert is_anything_heard(fleet) and not is_anything_heard(given(log.override("clear", at_s=5)).fleet)
    assert list(near_names(fleet, Scope("openrouter.ia"))) == [("openrouter.ai", None)]
    assert list(near_names(fleet, Scope("api.x.ai", "", "z-ai/glm-5.3"))) == [("openrouter.ai", "z-ai/glm-5.3")]
    assert list(near_names(fleet, Scope("nowhere", "", "none"))) == []
