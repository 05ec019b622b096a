"""The page in a browser: every question is answered within two clicks, and nothing is said in the console."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import DESKTOP, PHONE, browser, opened

Pages = dict[str, Path]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as found:
        yield found


class Reader:
    """Who reads the page: clicks and keys, counted; what he sees is what is shown."""

    def __init__(self, chrome: Any, page: Path):
        self.chrome, self.clicks = opened(chrome, page), 0

    def one(self, selector: str) -> Any:
        return self.chrome.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.chrome.find_elements("css selector", selector)

    def click(self, element: Any) -> None:
        self.clicks += 1
        element.click()

    def seen(self, element: Any) -> str:
        """Its text, if it is in sight."""
        self.settle()
        assert element.is_displayed()
        box = self.run("const b = arguments[0].getBoundingClientRect(); return [b.top, b.bottom, innerHeight]", element)
        assert box[1] > 0 and box[0] < box[2], f"out of sight: {box}"
        return element.text

    def run(self, script: str, *args: Any) -> Any:
        return self.chrome.execute_script(script, *args)

    def settle(self) -> None:
        self.chrome.execute_async_script(
            """const done = arguments[0], frame = requestAnimationFrame;
            data().then(() => frame(() => frame(() => setTimeout(done, 20))))"""
        )

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.chrome.get_log("browser")]


def test_why_was_my_attention_not_fused(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["attention"])
    answer = reader.one("#answer-attention")
    reader.click(answer.find_element("tag name", "summary"))
    told = reader.seen(answer)
    assert "tanh is between the softmax and a product" in told.replace("aten.", "").replace(".default", "")
    assert "scores = torch.tanh(scores) * 30" in told and "models.py:" in told
    reader.click(answer.find_element("css selector", "a.more"))
    miss = next(one for one in reader.all(".miss") if "tanh" in one.text)
    assert "stopped at" in reader.seen(miss)
    assert reader.clicks <= 2 and reader.errors() == []


def test_why_did_it_recompile(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["attention"])
    answer = reader.one("#answer-recompile")
    reader.click(answer.find_element("tag name", "summary"))
    assert "tensor 'x' size mismatch at index 1. expected 16, actual 24" in reader.seen(answer)
    reader.click(answer.find_element("css selector", "a.more"))
    assert "Compiled again because" in reader.seen(reader.one("#p1 > .why"))
    assert reader.clicks <= 2 and reader.errors() == []


def test_which_tensor_sets_the_peak(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["attention"])
    answer = reader.one("#answer-peak")
    reader.click(answer.find_element("tag name", "summary"))
    first = reader.seen(answer.find_element("tag name", "li"))
    assert "made by" in first and "models.py:" in first
    more = answer.find_element("css selector", "a.more")
    reader.click(more)
    sets = reader.one(f"#{more.get_attribute('href').partition('#')[2]} tr.sets")
    assert sets.is_displayed() and first.split(" made by")[0] in sets.text
    assert reader.clicks <= 2 and reader.errors() == []


def test_every_break_is_told(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["breaks"])
    reader.click(reader.one("#answer-breaks > summary"))
    told = reader.one("#answer-breaks").text
    for code in ("float(x", "graph_break()", "if x.sum() > 0", "torch.save", "open("):
        assert code in told
    assert reader.errors() == []


def test_a_kernel_opens_to_its_loops_llvm_and_machine_code(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["attention"])
    step = next(one for one in reader.all(".step") if not one.get_attribute("class").endswith("call"))
    reader.click(step.find_element("tag name", "summary"))
    reader.settle()
    loops, llvm, machine = step.find_elements("css selector", ".text")
    assert "kernel " in loops.text
    for text, word in ((llvm, "define "), (machine, "ret")):
        reader.click(text.find_element("tag name", "summary"))
        reader.settle()
        assert word in text.find_element("tag name", "pre").get_attribute("textContent")
    assert reader.errors() == []


def test_a_stage_shows_what_it_changed(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["attention"])
    reader.click(reader.one("#p0-stages > summary"))
    stage = next(
        one
        for one in reader.all("#p0-stages .stage")
        if "fuse" in one.text and "same" not in one.get_attribute("class")
    )
    reader.click(stage.find_element("tag name", "summary"))
    reader.settle()
    assert stage.find_elements("css selector", ".added") and stage.find_elements("css selector", ".removed")
    # What is taken away and put in are all that differs.
    before, after, edits = reader.chrome.execute_async_script(
        """const done = arguments[1], { before, after } = arguments[0].dataset;
        data().then((it) => done([it.texts[before], it.texts[after], edits(it.texts[before], it.texts[after])]))""",
        stage,
    )
    assert [line for kind, line in edits if kind != "+"] == before
    assert [line for kind, line in edits if kind != "-"] == after
    assert reader.errors() == []


def test_finding_by_keyboard(chrome: Any, pages: Pages) -> None:
    from selenium.webdriver.common.keys import Keys

    reader = Reader(chrome, pages["attention"])
    body = reader.one("body")
    body.send_keys("/")
    reader.chrome.switch_to.active_element.send_keys("tanh models.py:")
    hits = reader.all("#found a")
    assert hits and all("tanh" in one.text or "models.py" in one.text for one in hits)
    reader.chrome.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    reader.chrome.switch_to.active_element.send_keys(Keys.ENTER)
    reader.settle()
    assert reader.run("return location.hash").startswith("#")
    target = reader.run("return document.getElementById(decodeURIComponent(location.hash.slice(1))).id")
    assert reader.one(f'[id="{target}"]').is_displayed()
    assert reader.errors() == []


def test_everything_that_can_be_clicked_is_reached_by_tab(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["breaks"])
    unreachable = reader.run(
        """return [...document.querySelectorAll('summary, a[href], button, input')]
        .filter((one) => one.tabIndex < 0).map((one) => one.outerHTML)"""
    )
    assert unreachable == []
    unnamed = reader.run(
        """return [...document.querySelectorAll('button, input')]
        .filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length))
        .map((one) => one.outerHTML)"""
    )
    assert unnamed == []


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(pages: Pages, size: tuple[int, int], scheme: str) -> None:
    with browser(size, scheme) as chrome:
        for page in pages.values():
            reader = Reader(chrome, page)
            reader.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            reader.settle()
            assert reader.run("return document.documentElement.scrollWidth <= innerWidth"), page
            assert _contrast(reader) >= 4.5
            assert reader.errors() == []


def _contrast(reader: Reader) -> float:
    """The least of any text on the page, as WCAG counts it."""
    return reader.run(
        """
        const parse = (c) => c.match(/[\\d.]+/g).map(Number);
        const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const light = ([r, g, b]) => [r, g, b].map(linear)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
            if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
        let least = 21;
        const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let n = walk.nextNode(); n; n = walk.nextNode()) {
            const e = n.parentElement;
            if (!n.textContent.trim() || !e.checkVisibility() || e.closest('script, svg')) continue;
            const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
            least = Math.min(least, (a + 0.05) / (b + 0.05));
        }
        return least;
        """
    )


def test_printed_it_has_the_answers(chrome: Any, pages: Pages) -> None:
    reader = Reader(chrome, pages["attention"])
    printed = chrome.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        reader.run("dispatchEvent(new Event('beforeprint'))")
        assert "expected 16, actual 24" in reader.one("#answer-recompile li").text
        assert not reader.one("#find").is_displayed()
        assert reader.one(".question").size["width"] > 100
    finally:
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert reader.errors() == []
