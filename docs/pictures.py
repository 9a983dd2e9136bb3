"""Make the pictures of the documentation from the running product: `make pictures`.

`page.png` and `story.png` are the operators' page of a real `sickbay serve`; `demo.svg` is what `sickbay demo` prints.
They need Chromium. `flow.svg` is drawn by hand.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect, sync_playwright
from rich.console import Console
from rich.text import Text

import sickbay
import sickbay.sync

SICKBAY = (sys.executable, "-m", "sickbay")
IMAGES = Path(__file__).parent / "images"
CHROMIUM = "/usr/bin/chromium"
HTTP = "127.0.0.1:8491"
LIMIT_S = 60
COLUMNS = 116
"""Of the terminal; the longest line of the demonstration fits."""
WIDTH, HEIGHT, STORY_HEIGHT = 1200, 900, 680
"""Of the browser's window and of the second picture, in CSS pixels."""
REPLICAS = ("router-1", "router-2", "router-3", "router-4")
ANSWERED = sickbay.CallOutcome(kind="ok", took_ms=820, route="chat")
REPORTED = (
    (sickbay.Target("api.openai.com", "gpt-5.2"), ANSWERED),
    (sickbay.Target("api.anthropic.com", "claude-sonnet-5"), ANSWERED),
    (sickbay.Target("api.x.ai", "grok-4"), ANSWERED),
    (sickbay.Target("openrouter.ai", "z-ai/glm-5.3"), sickbay.CallOutcome(kind="model_unavailable", status=404)),
    (sickbay.Target("api.mistral.ai", "mistral-large-4"), sickbay.CallOutcome(kind="overloaded", status=503)),
    (sickbay.Target("api.cohere.com#team-a", "command-r8"), sickbay.CallOutcome(kind="quota", status=429)),
    (sickbay.Target("api.deepseek.com#batch", "deepseek-v4"), sickbay.CallOutcome(kind="auth", status=401)),
)
"""What each of the routers reports twice."""
HELD = 5
"""Targets and credentials that are held after that and the operator's act."""
ACT = ("hold", "api.x.ai", "grok-3-mini", "--for", "2h", "--reason", "answers in the wrong language", "--actor", "ana")


def demo() -> None:
    """What the demonstration prints, as a terminal shows it."""
    done = subprocess.run([*SICKBAY, "demo"], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    said = Text(done.stdout.rstrip())
    said.highlight_regex(r"(?m)^.*dead call, .*$", "red")
    said.highlight_regex(r"(?m)^.*(every replica refuses|replay of the log|saved:|held:).*$", "green")
    said.highlight_regex(r"(?m)^.*(now each replica|now with the cluster|has retired).*$|^measured in.*$", "bold")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print("[bold]$ make demo[/bold]")
    console.print(said)
    # Without the fonts that rich names, which the reader would have to load from elsewhere.
    svg = re.sub(r"\s*@font-face \{.*?\}|<!--.*?-->", "", console.export_svg(title="make demo"), flags=re.DOTALL)
    lines = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas").splitlines()
    (IMAGES / "demo.svg").write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def page() -> None:
    """The operators' page while several rules hold something."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*SICKBAY, "token", "ana", "--roles", "read,operate"]
        made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
        tokens = Path(folder) / "tokens.toml"
        tokens.touch(mode=0o600)
        tokens.write_text(made.stdout, encoding="utf-8")
        os.environ.update(SICKBAY_DATA=folder, SICKBAY_HTTP=HTTP, SICKBAY_HTTP_TOKENS=str(tokens))
        command = [*SICKBAY, "serve", "--until-stdin-closes"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serve:
            assert serve.stdin
            assert serve.stdout
            try:
                while "ask " not in (line := serve.stdout.readline()):
                    assert line, "the services ended before they were ready"
                report()
                subprocess.run([*SICKBAY, *ACT], check=True, capture_output=True, timeout=LIMIT_S)
                photograph(token=made.stderr.split()[-1])
            finally:
                serve.stdin.close()
                serve.stdout.read()
                serve.wait(LIMIT_S)


def report() -> None:
    """Four routers tell the services how their calls went."""
    for replica in REPLICAS:
        router = sickbay.sync.connect(replica=replica)
        assert router.ready(timeout_s=LIMIT_S)
        for target, outcome in (*REPORTED, *REPORTED):
            router.record(target, outcome)
        assert router.close(limit_s=LIMIT_S).total == 0


def photograph(token: str) -> None:
    """The page as somebody signed in sees it: the list of holds, and one target's story."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5).new_page()
        shown.goto(f"http://{HTTP}/")
        shown.get_by_role("button", name="Sign in").first.click()
        shown.get_by_label("Token", exact=True).fill(token)
        shown.keyboard.press("Enter")
        shown.get_by_role("button", name="Sign out").wait_for()
        rows = shown.locator("#held-list tbody tr")
        expect(rows).to_have_count(HELD)
        shown.evaluate("document.activeElement.blur()")
        box = shown.locator("section[aria-labelledby=held]").bounding_box()
        assert box
        height = box["y"] + box["height"] + 14
        shown.screenshot(path=IMAGES / "page.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        rows.filter(has_text="z-ai/glm-5.3").get_by_role("link").first.click()
        shown.locator("#detail").get_by_role("button", name="Clear").wait_for()
        shown.mouse.move(0, 0)
        shown.screenshot(path=IMAGES / "story.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": STORY_HEIGHT})
        browser.close()


if __name__ == "__main__":
    demo()
    page()
