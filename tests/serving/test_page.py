"""The status page in a real headless Chromium, over real and recorded machines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner import Effect, Reason
from stratad.server.api_keys import ApiKeys
from tests.serving.support import browser as browsers
from tests.serving.support.browser import Browser
from tests.serving.support.recorded_status import serve_as
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import Served, serve, wait_until

pytestmark = pytest.mark.skipif(browsers.PROGRAM is None, reason=browsers.LEFT_OUT)

SIZES = ((390, 844), (820, 1180), (1440, 900))
SCHEMES = ("light", "dark")
ESCAPE_ATTEMPT = "</script><img src=x onerror=window.wasHere=1><b>bold</b>"

# Colours of text against what lies behind it, as WCAG 2 counts contrast; elements without text of their own are
# left out, and so are switched-off buttons.
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data; };
  const light = (colour) => { const [r, g, b] = [...colour].slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
  const behind = (element) => { for (let at = element; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor); if (colour[3] === 255) return light(colour); }
    return 1; };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!hasText || element.closest("[hidden], :disabled, script, style, .skip, noscript")) continue;
    if (!element.checkVisibility()) continue;
    const [one, other] = [light(rgba(getComputedStyle(element).color)), behind(element)];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName}.${element.className}: ${ratio.toFixed(2)} ${element.textContent}`);
  }
  return found;
})()"""

# Controls that have no name for those who cannot see them.
NAMELESS = """[...document.querySelectorAll("button, input, textarea, a, summary, [role=img], [role=log], progress")]
  .filter((one) => one.checkVisibility())
  .filter((one) => !(one.textContent.trim() || one.getAttribute("aria-label") || (one.labels && one.labels.length)))
  .map((one) => one.outerHTML)"""

# Elements that stick out of their card, or whose text is wider than they are.
OVERFLOWING = """[...document.querySelectorAll(
    ".card, .figure, .node, .package, .message, header, footer, dd, td, code")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1
    && getComputedStyle(one).display !== "inline" && !one.closest(".scroll, svg"))
  .map((one) => `${one.tagName}.${one.className} ${one.scrollWidth} > ${one.clientWidth}`)"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsers.browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _fresh(tab: Browser) -> Iterator[None]:
    """Every test has the tab to itself, and none may leave an uncaught error or a refusal of the policy behind."""
    tab.look_like(1440, 900)
    tab.complaints.clear()
    yield
    # What the network says of refused requests is what some tests are about.
    assert [line for line in tab.complaints if not line.startswith("network:")] == []


def opened(tab: Browser, served: Served, state: str = "ready") -> None:
    tab.open(served.url + "/")
    tab.wait_for(f"document.querySelector('#state').dataset.state === '{state}'")


MACHINES = (
    "1n-2c-small",
    "2s2n-12c2t-gpu-n0-tight",
    "2s2n-16c2t-emerald-rapids-4gpu",
    "2s8n-memory-holes",
    "2s8n-128c2t",
)


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_is_readable_at_every_size_in_light_and_dark(name: str, tab: Browser) -> None:
    with serve_as(name, has_cache="gpu" in name) as served:
        for (width, height), scheme in itertools.product(SIZES, SCHEMES):
            tab.look_like(width, height, scheme=scheme)
            opened(tab, served)
            tab.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            where = f"{name} at {width} in {scheme}"
            assert tab.value("document.documentElement.scrollWidth") <= width, where
            assert tab.value(OVERFLOWING) == [], where
            assert tab.value(CONTRASTS) == [], where
            assert tab.value(NAMELESS) == [], where


def test_cores_are_drawn_on_their_nodes_with_what_they_do(tab: Browser) -> None:
    with serve_as("2s8n-128c2t") as served:
        opened(tab, served)
        labels = tab.value(
            "[...document.querySelectorAll('.cores')].map((one) => one.getAttribute('aria-label'))"
        )
        counts = tab.value(
            "[document.querySelectorAll('.core').length, document.querySelectorAll('.core .cpu').length,"
            " document.querySelectorAll('.cpu.worker').length, document.querySelectorAll('.package').length]"
        )
        plan = served.service.plan_document()
    assert plan is not None
    workers = len(plan["layout"]["workers"])
    assert counts == [128, 256, workers, 2]
    assert len(labels) == 8
    assert labels[3].startswith("Node 3: 16 cores, ")
    assert "workers of slice 3" in labels[3]


def test_gpus_stand_on_their_node_and_one_of_an_unknown_node_apart(tab: Browser) -> None:
    with serve_as("2s2n-16c2t-emerald-rapids-4gpu", has_cache=True) as served:
        opened(tab, served)
        nodes = tab.value(
            "[...document.querySelectorAll('.node')].map((one) => one.querySelectorAll('.gpu').length)"
        )
        lost = tab.text(".gpus.unknown")
        figures = tab.text("#figures")
    assert nodes == [2, 1]
    assert "0000:af:00.0" in lost
    assert "93.0 %" in figures


def test_pages_on_another_node_are_shown_with_the_share_and_the_remedy(tab: Browser) -> None:
    with serve_as("2s2n-12c2t-gpu-n0-tight", astray=0.2) as served:
        opened(tab, served, "degraded")
        pages, reasons, alerts = tab.text("#pages"), tab.text("#reasons"), tab.text("#alerts")
        widths = tab.value(
            "[...document.querySelectorAll('#pages li:first-child i')].map((one) => [one.className, one.style.width])"
        )
        no_cache = "Expert cache" not in tab.text("#figures")
    assert "80.0 % there" in pages
    assert "819 astray" in pages
    assert [name for name, _ in widths] == ["", "astray"]
    assert float(widths[1][1].rstrip("%")) == pytest.approx(20, abs=0.1)
    assert "headroom-tight" in reasons
    assert "What to do: stop other programs" in reasons
    assert "not as planned" in alerts
    assert no_cache


def test_one_page_in_a_thousand_astray_is_not_rounded_to_a_hundred_percent(tab: Browser) -> None:
    with serve_as("2s2n-12c2t-gpu-n0-tight", astray=0.0004) as served:
        opened(tab, served)
        assert "99.9 % there" in tab.text("#pages")


def test_loading_shows_how_far_it_is_and_turns_into_ready_by_itself(tab: Browser) -> None:
    with serve(is_loaded=False) as served:
        served.service.loading("loading weights", 0.42)
        opened(tab, served, "loading")
        assert "loading weights, 42 %" in tab.text("#alerts")
        assert tab.value("document.querySelector('progress').value") == pytest.approx(0.42)
        assert tab.value(CONTRASTS) == []
        served.make_ready()
        tab.wait_for("document.querySelector('#state').dataset.state === 'ready'")
        assert tab.text("#alerts") == ""


def test_a_failed_engine_is_said(tab: Browser) -> None:
    with serve() as served:
        opened(tab, served)
        served.runner.failures = [RuntimeError("broken")] * 3
        for _ in range(3):
            ask(tab, "Hi")
            tab.wait_for("!running")
        tab.wait_for("document.querySelector('#state').dataset.state === 'failed'")
        assert "answers nothing any more" in tab.text("#alerts")


def test_a_daemon_that_goes_and_comes_back_is_noticed(tab: Browser) -> None:
    with serve() as served:
        opened(tab, served)
        port = int(served.url.rpartition(":")[2])
    tab.wait_for("document.querySelector('#state').dataset.state === 'gone'")
    assert "has not answered since" in tab.text("#alerts")
    assert tab.value("document.querySelector('#observed').classList.contains('stale')")
    with serve(port=port):
        tab.wait_for("document.querySelector('#state').dataset.state === 'ready'")
        assert not tab.value("document.querySelector('#observed').classList.contains('stale')")


def test_text_from_daemon_and_model_stays_text(tab: Browser) -> None:
    runner = ScriptedRunner(lambda prompt: [ESCAPE_ATTEMPT.encode()])
    with serve(runner) as served:
        reason = Reason("headroom-tight", Effect.WARNS, ESCAPE_ATTEMPT, remedy=ESCAPE_ATTEMPT)
        served.service.found(reason)
        opened(tab, served)
        assert ESCAPE_ATTEMPT in tab.text("#reasons")
        ask(tab, "Hi")
        tab.wait_for("document.querySelector('#pace').textContent.includes('tokens/s')")
        assert ESCAPE_ATTEMPT in tab.text("#messages")
        assert tab.value("document.querySelectorAll('main img, main b b').length") == 0
        assert tab.value("window.wasHere === undefined")


def test_markup_and_foreign_script_are_refused_by_the_policy(tab: Browser) -> None:
    with serve() as served:
        opened(tab, served)
        made = tab.value(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch { return 'refused'; } })()"
        )
        tab.value(
            "new Promise((done) => { document.addEventListener('securitypolicyviolation', (event) => done("
            "event.effectiveDirective), { once: true }); fetch('http://127.0.0.1:1/').catch(() => {}); })"
        )
        tab.complaints.clear()
    assert made == "refused"


def ask(tab: Browser, text: str) -> None:
    tab.value("document.querySelector('#question').focus()")
    tab.type(text)
    tab.press("Enter")


def test_the_chat_streams_shows_its_pace_and_keeps_the_conversation(tab: Browser) -> None:
    with serve(ScriptedRunner(lambda prompt: [b"An", b"swer"], context_tokens=512)) as served:
        opened(tab, served)
        ask(tab, "one")
        tab.wait_for("document.querySelector('#pace').textContent.includes('tokens/s')")
        assert tab.text("#messages").split() == ["one", "Answer"]
        ask(tab, "two")
        wait_until(lambda: len(served.runner.prompts) == 2)
        tab.wait_for(
            "document.querySelectorAll('.message').length === 4 && !document.querySelector('.running')"
        )
        assert re.search(rb"one.*Answer.*two", served.runner.prompts[1], re.DOTALL)
        tab.wait_for("document.querySelector('#slots').innerText.includes('holds 0') === false")


def test_an_answer_is_streamed_piece_by_piece_and_stopped_by_the_button(tab: Browser) -> None:
    runner = ScriptedRunner(lambda prompt: [b"word "] * 100, context_tokens=512, holds_steps=True)
    with serve(runner) as served:
        opened(tab, served)
        ask(tab, "Go")
        # The prompt goes in chunks of four tokens; each grant lets one call go on.
        runner.grant_steps(40)
        tab.wait_for("document.querySelector('.running')?.textContent.includes('word')")
        assert tab.value("document.querySelector('#messages').getAttribute('aria-busy')") == "true"
        tab.value("document.querySelector('#stop').focus()")
        tab.press("Enter")
        tab.wait_for("document.querySelector('#pace').textContent.includes('stopped')")
        # The engine must have heard of it before it may go on, or it would have answered by then.
        wait_until(lambda: all(one.is_cancelled for one in served.engine._requests._running))
        runner.release()
        wait_until(lambda: served.engine.status().running == 0)
        assert dict(served.engine.status().finish_reasons)["cancelled"] == 1
        assert tab.value("document.activeElement.id") == "question", "focus is not lost with the button"


def test_a_refused_question_is_told_and_taken_back(tab: Browser) -> None:
    with serve(ScriptedRunner(context_tokens=32)) as served:
        opened(tab, served)
        ask(tab, "x" * 100)
        tab.wait_for("document.querySelector('.problem') !== null")
        assert "context holds 32" in tab.text(".problem")
        assert "“New chat” starts over" in tab.text(".problem")
        assert tab.value("turns.length") == 0
        assert tab.value("document.querySelector('#send').disabled") is False


def test_everything_is_reached_by_keyboard_in_order_and_seen_in_focus(tab: Browser) -> None:
    with serve_as("2s2n-12c2t-gpu-n0-tight") as served:
        opened(tab, served)
        reached, outlines = [], []
        for _ in range(9):
            tab.press("Tab")
            reached.append(tab.value("document.activeElement.id || document.activeElement.tagName"))
            outlines.append(
                tab.value(
                    "(() => { const style = getComputedStyle(document.activeElement);"
                    " return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2; })()"
                )
            )
        tab.value("document.querySelector('summary').focus()")
        tab.press("Enter")
        is_open = tab.value("document.querySelector('details').open")
    assert reached == ["A", "SUMMARY", "fresh", "messages", "question", "longest", "send", "A", "A"]
    assert all(outlines)
    assert is_open


def test_with_api_keys_the_page_asks_and_keeps_the_key_in_this_tab_only(tab: Browser, tmp_path: Path) -> None:
    with serve(api_keys=keys_of("right-key", tmp_path)) as served:
        opened(tab, served, "locked")
        assert tab.value("document.activeElement.id") == "key"
        assert tab.value("document.querySelector('#observed').hidden")
        assert tab.value(NAMELESS) == []
        tab.type("wrong-key")
        tab.press("Enter")
        tab.wait_for(
            "document.querySelector('#key').value === '' && !document.querySelector('#key-form').hidden"
        )
        tab.type("right-key")
        tab.press("Enter")
        tab.wait_for("document.querySelector('#state').dataset.state === 'ready'")
        ask(tab, "Hi")
        tab.wait_for("document.querySelector('#pace').textContent.includes('tokens/s')")
        stored = tab.value("[JSON.stringify(sessionStorage), localStorage.length, document.cookie]")
        tab.value("document.querySelector('#forget').click()")
        tab.wait_for("document.querySelector('#state').dataset.state === 'locked'")
        forgotten = tab.value("sessionStorage.length")
    assert stored == ['{"stratad-api-key":"right-key"}', 0, ""]
    assert forgotten == 0


def keys_of(key: str, folder: Path) -> ApiKeys:
    from stratad.server.api_keys import read_key_files

    path = folder / "keys"
    path.write_text(f"{key}\n")
    return ApiKeys(read_key_files(path, None))


def test_the_graph_and_the_pools_rates_come_from_what_changes(tab: Browser) -> None:
    with serve_as("2s2n-12c2t-gpu-n0-tight") as served:
        opened(tab, served)
        for _ in range(2):
            served.client().completions.create(model="scripted", prompt="abcd")
            count = tab.value("looks.length")
            tab.wait_for(f"looks.length > {count}")
        label = tab.value("document.querySelector('.graph').getAttribute('aria-label')")
        path = tab.value("document.querySelector('.curve').getAttribute('d')")
        tokens = tab.value("looks[looks.length - 1].tokens - looks[0].tokens")
        pool = tab.text("#pool")
    assert tokens == 2 * 4
    assert label.startswith("Tokens a second over the last 5 minutes: now ")
    assert re.fullmatch(r"M[\d.]+ [\d.]+(L[\d.]+ [\d.]+)+", path)
    assert re.search(r"GB/s", pool)
