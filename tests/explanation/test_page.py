"""The page as HTML: whole, alone, and with nothing of the user's taken for markup. A browser has its own tests."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import litz
from litz.explanation.explanation import (
    Choice,
    Excerpt,
    Explanation,
    Function,
    Made,
    Memory,
    PartOfStep,
    Piece,
    Stage,
    Step,
    Tensor,
)
from litz.explanation.page import page, read_page, write_page
from litz.report import Break, NearMiss

NASTY = '/a b/m.py:3: x = "<script>alert(1)</script>" & y'
STEP = Step("forward", "k0", "loops", ("add", "<b>"), "4", (NASTY,), 64, 4, 0, 1.5, 2, "k_1")
MEMORY = Memory((PartOfStep("forward", 1),), (64,), 8, 0, (Tensor("t0", 64, 0, 0, "add", NASTY),))
PIECE = Piece(
    0, NASTY, "/a b/m.py:1: forward", True, "0/0: changed", "0/1", Break("why <i>\n  Hint: so", NASTY), None,
    (Stage("", "trace", 0.1, 0), Stage("forward", "lower", 0.1, 1), Stage("forward", "build", 0.1, None)), (STEP,),
    (Function("k_1", 0, 1),), MEMORY, (), (NearMiss("attention", "n", "no <u>", 2, NASTY),), again=True,
)  # fmt: skip
IT = Explanation(
    "<model>", Made("0", "0", "0", "here"), (PIECE,), (Break("given up", None),),
    (Excerpt("/a b/m.py", ((2, "y = 1"), (3, NASTY), (9, "z"))),), ("one </script>", "two"), ((0, 1), (1,)),
    first_call=1.0, step=0.1,
)  # fmt: skip
VOID = {"meta", "link", "input", "line", "path", "rect", "br"}


class Walk(HTMLParser):
    """Checks that tags are closed in order, and collects what a browser would fetch, run, or go to."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag == "a" and (given.get("href") or "").startswith("#"):
            self.anchors.append(unquote(given["href"] or "")[1:])
        else:
            self.fetched += [value or "" for name, value in attrs if name in ("src", "href") and value != "data:,"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, (tag, self.getpos())


def test_it_stands_alone_and_nothing_of_the_users_is_markup() -> None:
    found = Walk(page(IT))
    assert found.open == []
    assert found.fetched == []
    assert found.tags.count("script") == 2  # the data, and the page's own
    assert not {"b", "u", "i"} & set(Walk(page(replace(IT, pieces=()))).tags)
    assert len(found.ids) == len(set(found.ids))


def test_links_of_answers_lead_somewhere() -> None:
    found = Walk(page(IT))
    assert found.anchors and set(found.anchors) <= set(found.ids)


def test_the_same_explanation_gives_the_same_page() -> None:
    assert page(IT) == page(IT)


def test_a_page_holds_the_data_it_was_made_of(tmp_path: Path) -> None:
    write_page(IT, tmp_path / "page.html")
    assert read_page(tmp_path / "page.html") == IT


@pytest.mark.parametrize("text", ["<p>another page</p>", '<script type="application/gzip" id="data">AAAA</script>'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.html").write_text(text)
    with pytest.raises(litz.LitzError, match=r"is not a page of|is damaged"):
        read_page(tmp_path / "page.html")


def test_choices_are_a_table() -> None:
    choices = (Choice(1 << 30, 0.0), Choice(1 << 29, 0.75, compiled=True))
    text = page(replace(IT, pieces=(replace(PIECE, budget="80%", choices=choices),)))
    assert "1.0 GiB" in text and "750 ms" in text and ">compiled<" in text


def test_files_of_one_name_are_told_apart() -> None:
    other = Excerpt("/other/m.py", ((3, "z = 1"),))
    found = Walk(page(replace(IT, excerpts=(*IT.excerpts, other))))
    assert len(found.ids) == len(set(found.ids))
