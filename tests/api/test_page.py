"""The operator's page in a real browser: live, escaped, of use by keyboard and on a phone, loud when blind."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from page_rig import (
    CONTRASTS,
    TOKENS,
    House,
    Visitor,
    focused,
    has_no_sideways_scroll,
    lacks_role,
    launch,
    needs_chromium,
    place_of,
    row_of,
    tab_to,
    token_of,
)
from sickbay.api.pages import INDEX, assets
from sickbay.bus.entries import read_entries
from sickbay.bus.topology import CONTROL
from sickbay_events import Scope
from waiting import until

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

Visit: TypeAlias = Callable[..., Awaitable[Visitor]]
SCRIPT = "<script>window.hacked=1</script>"
IMAGE = '"><img src=x onerror=window.hacked=1>'
TURNED = "gpt-\u202e5.elbasu\u200b\u0007"
LONG = "m" * 250
"""Names are at most 256 bytes long."""
LIVE_MS = 15_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    running = House(tmp_path_factory.mktemp("page"))
    try:
        await running.start()
        yield running
    finally:
        await running.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        running = await launch(playwright)
        yield running
        await running.close()


@pytest_asyncio.fixture(loop_scope="module")
async def visit(house: House, browser: Browser) -> AsyncIterator[Visit]:
    """Lets somebody new come; at the end nobody's browser may have complained, of its content policy least of all."""
    made: list[Visitor] = []

    async def come(*, width: int = 1_280, skewed_s: int = 0, **options: Any) -> Visitor:
        context = await browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(LIVE_MS)
        if skewed_s:
            now = f"const real = Date.now; Date.now = () => real() + {skewed_s * 1000};"
            await context.add_init_script(now)
        made.append(Visitor(house, context, await context.new_page()))
        return made[-1]

    yield come
    for visitor in made:
        await visitor.context.close()
    assert [visitor.complaints for visitor in made] == [[] for _ in made]


async def test_the_page_lets_in_nothing_from_elsewhere(house: House, visit: Visit) -> None:
    """No text becomes markup or a script, and no other server is asked: the browser itself refuses."""
    visitor = await visit()
    page = await visitor.open()
    refused = await page.evaluate(
        """async () => {
            const refused = new Set();
            addEventListener("securitypolicyviolation", (event) => refused.add(event.effectiveDirective));
            const attempts = [
                () => { document.body.innerHTML = "<b>x</b>"; },
                () => import("http://elsewhere.test/x.js"),
                () => { document.body.setAttribute("onclick", "window.hacked = 1"); document.body.click(); },
                () => { document.body.setAttribute("style", "color: red"); },
                () => { document.body.append(Object.assign(document.createElement("iframe"), {src: "/"})); },
                () => fetch("http://elsewhere.test/"),
            ];
            for (const attempt of attempts) try { await attempt(); } catch {}
            await new Promise((resolve) => setTimeout(resolve, 100));
            return [[...refused].sort(), window.hacked ?? null];
        }"""
    )
    directives = ["connect-src", "frame-src", "require-trusted-types-for", "script-src-elem", "style-src-attr"]
    assert refused == [directives, None]
    visitor.complaints.clear()


async def test_every_file_that_the_page_names_is_served(house: House, visit: Visit) -> None:
    """With its type and no word of where it comes from; what is no file of it is not."""
    page = (await visit()).page
    named = {*re.findall(r"/page/([\w.]+)", assets()[INDEX].body.decode())}
    for asset in assets().values():
        named |= set(re.findall(r'from "\./([\w.]+)"', asset.body.decode()))
    assert named == assets().keys() - {INDEX}
    for name in named:
        answer = await page.request.get(f"{house.url}/page/{name}")
        assert (answer.status, answer.headers["x-content-type-options"]) == (200, "nosniff")
        known = await page.request.get(f"{house.url}/page/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert known.status == 304
    for name in ("nothing.js", "index.html", "..%2Fpages.py", "%2e%2e/pages.py"):
        assert (await page.request.get(f"{house.url}/page/{name}")).status == 404, name


async def test_names_and_reasons_from_outside_stay_text(house: House, visit: Visit) -> None:
    """A model, a route's reason or an address of the page that is markup, turns text around or is endless."""
    names = [SCRIPT, IMAGE, TURNED, LONG]
    await house.reject("evil.example", *names)
    await house.act("hold", Scope("evil.example"), f"{IMAGE} {SCRIPT}", 600)
    visitor = await visit()
    page = await visitor.open()
    await page.get_by_label("Filter").fill("evil.example")
    await expect(page.locator("#held-list tbody tr")).to_have_count(5)
    await expect(page.locator("#health-list .models li")).to_have_count(4)
    shown = "gpt-\\u{202e}5.elbasu\\u{200b}\\u{7}"
    for text in (SCRIPT, IMAGE, shown, LONG, "the whole provider"):
        link = page.locator("#held-list").get_by_role("link", name=f"evil.example {text}", exact=True)
        await expect(link).to_have_count(1)
    await expect(row_of(page, "the whole provider")).to_contain_text(f"bruno: {IMAGE} {SCRIPT}")
    for model in names:
        await page.evaluate("(hash) => { location.hash = hash }", place_of("evil.example", model))
        await expect(page.locator("#detail .verdict")).to_contain_text("Held by an operator")
        await expect(page.locator("#detail-name")).to_have_text(shown if model == TURNED else model)
        assert await has_no_sideways_scroll(page)
    visitor.refusals_expected = True
    await page.evaluate("(hash) => { location.hash = hash }", place_of("evil.example", "<b>" * 400))
    await expect(page.locator("#detail > .error")).to_contain_text("could not be read")
    made = await page.evaluate("[document.scripts.length, document.images.length, window.hacked ?? null]")
    assert made == [1, 1, None]


async def test_a_hold_appears_as_it_happens_and_counts_down_by_the_logs_clock(house: House, visit: Visit) -> None:
    """Nothing is loaded again; the browser's own clock, five hours fast, takes no part; who listens is told."""
    page = await (await visit(skewed_s=5 * 3600)).open()
    await expect(page.locator("#freshness")).to_contain_text(re.compile(r"live view \d\.\d s old"))
    await page.get_by_label("Filter").fill("live.example")
    await expect(page.locator("#held-list")).to_contain_text(re.compile("Nothing"))
    await house.reject("live.example", "vendor/model-1")
    row = row_of(page, "vendor/model-1")
    await expect(row).to_contain_text("quarantined")
    await expect(row).to_contain_text("2 × model_unavailable (404)")
    await expect(page.locator("#announcer")).to_contain_text("vendor/model-1: held by quarantine until")
    await expect(page.locator("#health-list li").filter(has_text="vendor/model-1")).to_contain_text("quarantined")
    lane = page.locator("#timeline-list li").filter(has_text="vendor/model-1")
    await expect(lane).to_contain_text("held now · quarantine")
    assert re.match(r"quarantine \d\d:\d\d:\d\d to", await lane.get_by_role("img").get_attribute("aria-label") or "")
    left = row.locator(".left")
    first = await left.text_content() or ""
    assert re.fullmatch(r"9m [0-5]\ds|10m 00s", first)
    await expect(left).not_to_have_text(first)
    seconds = [
        60 * int(m) + int(s) for m, s in (re.findall(r"\d+", text) for text in (first, await left.text_content()))
    ]
    assert 0 < seconds[0] - seconds[1] < 10
    await house.act("clear", Scope("live.example", "", "vendor/model-1"), "it is back")
    await expect(row).to_have_count(0)
    await expect(page.locator("#announcer")).to_contain_text("released from quarantine")


async def test_a_hold_is_cleared_by_keyboard_alone(house: House, visit: Visit) -> None:
    """From signing in to the act in the log, with a focus that can always be seen and is never lost."""
    await house.reject("keys.example", "vendor/model-2")
    page = await (await visit()).open()
    await tab_to(page, "Skip to what is held")
    await tab_to(page, "button Sign in")
    await page.keyboard.press("Enter")
    await page.keyboard.type(token_of("ana"))
    await page.keyboard.press("Enter")
    await expect(page.locator("#session")).to_contain_text("ana operate, read")
    await page.keyboard.press("/")
    await page.keyboard.type("vendor/model-2")
    await expect(page.locator("#held-list tbody tr")).to_have_count(1)
    await tab_to(page, "a keys.example vendor/model-2")
    await page.keyboard.press("Enter")
    assert await focused(page) == "h2 detail-name"
    await expect(page.locator("#detail .verdict")).to_contain_text("Quarantined. Again in 9m")
    await expect(page.get_by_role("radio", name="Clear")).to_be_checked()
    await tab_to(page, "input act-reason")
    await page.keyboard.type("the provider says it is back")
    await page.keyboard.press("Enter")
    await expect(page.locator("#confirm")).to_contain_text("keys.example vendor/model-2")
    assert await focused(page) == "button confirm-no"
    await tab_to(page, "button confirm-yes", most=1)
    await page.keyboard.press("Enter")
    await expect(page.locator("#detail .done")).to_have_text("Cleared. It is in the log.")
    await expect(page.locator("#detail .verdict")).to_contain_text("may be called")
    await expect(page.locator("#held-list tbody tr")).to_have_count(0)
    assert await focused(page) == "input act-reason"
    await page.keyboard.press("Escape")
    await expect(page.locator("#detail")).to_be_hidden()
    assert await focused(page) == "a keys.example vendor/model-2"
    assert house.client is not None
    acts = (await read_entries(house.client, CONTROL, "sickbay.override.keys=2Eexample.>")).entries
    told = [json.loads(entry.payload) for entry in acts]
    assert [(act["action"], act["actor"], act["reason"]) for act in told] == [
        ("clear", "ana", "the provider says it is back")
    ]


async def test_who_may_not_is_told_so(house: House, visit: Visit) -> None:
    """Closed without a token where it is, read-only without the role, and the API's own words where it refuses."""
    await house.reject("roles.example", "vendor/model-3")
    visitor = await visit()
    # By a name that is not this machine's nobody reads without a token: any web page could have its own lead here.
    page = await visitor.open(url=house.foreign_url)
    await expect(page.locator("#closed")).to_be_visible()
    await expect(page.locator("#body")).to_be_hidden()
    visitor.refusals_expected = True
    await page.locator("#closed").get_by_role("button", name="Sign in").click()
    await page.get_by_label("Token", exact=True).fill("sbk_nobodys-token-that-is-long-enough")
    await page.keyboard.press("Enter")
    await expect(page.locator("#sign-in-error")).to_contain_text("not known here")
    await page.keyboard.press("Escape")
    await visitor.sign_in("rob")
    await expect(page.locator("#closed-why")).to_contain_text(
        "The token of rob has the role report, not the role read."
    )
    await page.get_by_role("button", name="Sign out").click()
    await visitor.sign_in("rita")
    await page.get_by_label("Filter").fill("roles.example")
    await row_of(page, "vendor/model-3").get_by_role("link").click()
    await expect(page.locator("#detail .act")).to_contain_text("the role operate is needed")
    await expect(page.locator("#detail form")).to_have_count(0)
    assert await page.evaluate("document.cookie") == ""
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.locator("#closed")).to_be_visible()
    await expect(page.locator("#held-list")).to_have_text("")
    await visitor.sign_in("ana")
    await page.evaluate("(hash) => { location.hash = hash }", place_of("roles.example", "vendor/model-3"))
    await page.get_by_role("radio", name="Hold").check()
    await page.get_by_label("Reason").evaluate("(field) => field.removeAttribute('maxlength')")
    await page.get_by_label("Reason").fill("because " * 100)
    await page.get_by_role("button", name="Hold …").click()
    await page.locator("#confirm").get_by_role("button", name="Hold for 30 minutes").click()
    await expect(page.locator("#detail .act .error")).to_contain_text(re.compile("Refused: reason .*500"))
    house.allow({"ana": ["read"]})
    try:
        await until(lambda: lacks_role(house, page, "ana", "operate"))
        await page.get_by_label("Reason").fill("a look at it")
        await page.get_by_role("button", name="Hold …").click()
        await page.locator("#confirm").get_by_role("button", name="Hold for 30 minutes").click()
        await expect(page.locator("#detail .act .error")).to_contain_text("the token of ana lacks the role operate")
        await expect(page.locator("#detail .act")).to_contain_text("the role operate is needed")
        await expect(page.locator("#detail form")).to_have_count(0)
    finally:
        house.allow(TOKENS)


async def test_a_story_has_an_address_and_tells_what_happened(house: House, visit: Visit) -> None:
    """A link leads to it, the way back leaves it, and it goes on as things happen."""
    await house.reject("story.example#team-a", "vendor/model-4", replicas=("router-1", "router-2", "router-3"))
    page = await (await visit()).open(place_of("story.example#team-a", "vendor/model-4"))
    detail = page.locator("#detail")
    await expect(detail).to_contain_text("Quarantined")
    await expect(page).to_have_title("vendor/model-4 · Sickbay")
    await expect(detail).to_contain_text("1 more of the kind since quarantine began")
    await expect(detail.locator(".happened")).to_contain_text("held by quarantine until")
    await expect(detail).to_contain_text("sickbay explain story.example#team-a vendor/model-4")
    await house.act("allow", Scope("story.example", "team-a", "vendor/model-4"), "tried by hand", 900)
    await expect(detail.locator(".verdict")).to_contain_text("by an operator's word")
    await expect(detail).to_contain_text("bruno: tried by hand")
    await detail.get_by_role("link", name="story.example#team-a", exact=True).click()
    await expect(page.locator("#detail-name")).to_have_text("story.example#team-a")
    await page.go_back()
    await expect(page.locator("#detail-name")).to_have_text("vendor/model-4")
    await page.keyboard.press("Escape")
    await expect(detail).to_be_hidden()


async def test_two_hundred_held_targets_stay_of_use_on_a_phone(house: House, visit: Visit) -> None:
    """360 pixels wide nothing lies to the side, a filter finds one of many, and a story covers the list."""
    await house.reject("crowd.example", *(f"vendor/model-with-a-rather-long-name-{n:03}" for n in range(200)))
    page = await (await visit(width=360, has_touch=True)).open()
    rows = page.locator("#held-list tbody tr")
    await page.get_by_label("Filter").fill("crowd.example")
    await expect(page.locator("#filter-count")).to_have_text(re.compile(r"^200 of 2\d\d held$"))
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Show all 200").first.click()
    await expect(rows).to_have_count(200)
    assert await has_no_sideways_scroll(page)
    await page.get_by_label("Filter").fill("name-123")
    await expect(rows).to_have_count(1)
    await rows.get_by_role("link").tap()
    await expect(page.locator("#detail")).to_contain_text("Quarantined")
    assert await has_no_sideways_scroll(page)
    assert await page.evaluate("document.getElementById('main').inert")
    close = page.get_by_role("link", name="Close")
    box = await close.bounding_box()
    assert box is not None
    assert box["height"] >= 40
    await close.tap()
    await expect(rows).to_have_count(1)
    assert not await page.evaluate("document.getElementById('main').inert")


async def test_the_timeline_shows_each_hold_for_as_long_as_it_held(house: House, visit: Visit) -> None:
    """An end that moved, an early release, what began before the day, one replica's own, shadow, a failed trial."""
    page = await (await visit()).open()
    hour = 3_600_000
    now = 100 * hour
    facts = [
        held("a", 1, at=80, end=81), held("a", 1, at=80.5, end=82, old_end_ms=81 * hour),
        held("b", 2, at=90, end=99), {**held("b", 2, at=91, end=99), "type": "released", "by": "success"},
        held("c", 3, at=77, end=78, old_end_ms=77 * hour),
        held("d", 4, at=95, end=101, replica="router-1"), held("d", 4, at=96, end=101),
        held("e", 5, at=95, end=101, replica="router-1"),
        held("f", 6, at=99, end=100, enforced=False),
        held("g", 7, at=99, end=103), held("h", 8, at=70, end=75),
        held("i", 9, at=96, end=97), held("i", 10, at=96.5, end=98, old_end_ms=97 * hour),
        {**held("i", 10, at=97.5, end=98), "type": "released", "by": "success"},
    ]  # fmt: skip
    found = await page.evaluate(
        """async ([facts, from, now]) => {
            const { lanes } = await import("/page/model.js");
            const bars = (lane) => lane.bars.map((bar) => [bar.fromMs, bar.toMs]);
            return lanes(facts, from, now).map((lane) => [lane.model, bars(lane), lane.heldMs, lane.isHeld]);
        }""",
        [facts, now - 24 * hour, now],
    )
    in_hours = [
        [model, [[start / hour, end / hour] for start, end in bars], held_ms / hour, is_held]
        for model, bars, held_ms, is_held in found
    ]
    assert in_hours == [
        ["d", [[96, 101]], 4, True],
        ["g", [[99, 103]], 1, True],
        ["a", [[80, 82]], 2, False],
        ["c", [[76, 78]], 2, False],
        ["i", [[96, 97.5]], 1.5, False],
        ["b", [[90, 91]], 1, False],
        ["e", [[95, 101]], 0, False],
        ["f", [[99, 100]], 0, False],
    ]


def held(model: str, began_seq: int, *, at: float, end: float, **more: Any) -> dict[str, Any]:
    hour = 3_600_000
    where = {"type": "held", "provider": "p", "model": model, "rule": "breaker", "began_seq": began_seq}
    return {**where, "time_ms": at * hour, "end_ms": end * hour, **more}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_can_be_read(house: House, visit: Visit, scheme: str) -> None:
    """In light and in dark each has the contrast of WCAG AA, 4.5 to 1; and who wants no motion gets none."""
    await house.reject("read.example", "vendor/model-5")
    await house.act("hold", Scope("read.example"), "a look at it", 900)
    visitor = await visit(color_scheme=scheme, reduced_motion="reduce")
    page = await visitor.open(place_of("read.example", "vendor/model-5"))
    await expect(page.locator("#detail .card")).to_have_count(2)
    await expect(page.locator("#health-list .models li").first).to_be_visible()
    await visitor.sign_in("ana")
    await expect(page.locator("#detail form")).to_be_visible()
    seen, poor = await page.evaluate(CONTRASTS)
    assert seen > 50
    assert poor == []
    assert await page.evaluate("document.getAnimations().length") == 0


async def test_a_blind_page_says_so_at_once(house: House, visit: Visit) -> None:
    """Stale while nobody writes the view, lost when nothing answers; afterwards all that was missed is there."""
    visitor = await visit()
    visitor.refusals_expected = True
    page = await visitor.open()
    banner = page.get_by_role("alert").and_(page.locator("#banner-text"))
    word = page.locator("#freshness-word")
    await expect(word).to_contain_text("live")
    await expect(banner).to_be_hidden()
    nats = house.nats_pid()
    os.kill(nats, signal.SIGSTOP)
    try:
        await expect(word).to_contain_text("stale")
        await expect(banner).to_contain_text("The view is stale")
    finally:
        os.kill(nats, signal.SIGCONT)
    await expect(word).to_contain_text("live")
    await expect(banner).to_be_hidden()  # all of it was read by now, whatever was asked while NATS stood still
    house.signal(signal.SIGSTOP)
    try:
        await expect(banner).to_contain_text("Connection lost. What stands here is as of")
        await expect(page).to_have_title("Connection lost · Sickbay")
    finally:
        house.signal(signal.SIGCONT)
    await expect(word).to_contain_text("live")
    await expect(banner).to_be_hidden()
    await house.kill()
    await expect(banner).to_contain_text(
        "Connection lost", timeout=3_000
    )  # by the break itself, before the silence tells
    await house.start()
    await house.reject("missed.example", "vendor/model-6")
    await expect(row_of(page, "vendor/model-6")).to_contain_text("quarantined")
    await expect(word).to_contain_text("live")
    await expect(banner).to_be_hidden()
