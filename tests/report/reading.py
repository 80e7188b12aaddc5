"""A strict reader of pages."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path


@dataclass
class Element:
    """An HTML element with everything inside it."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str]

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """The elements inside with this tag and these attributes, in the order of the page."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                same = all(child.attributes.get(k.strip("_")) == v for k, v in attributes.items())
                if same and tag in ("", child.tag):
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    def one(self, tag: str = "", **attributes: str) -> Element:
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return " ".join(" ".join(parts).split())


class Reader(HTMLParser):
    """A strict reader: every element that is opened must be closed, in order."""

    EMPTY = frozenset({"meta", "link", "br", "img", "input"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open = [Element("page", {}, [])]
        self.feed(page)
        self.close()
        assert len(self.open) == 1, f"<{self.open[-1].tag}> is never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        element = Element(tag, {name: value or "" for name, value in attrs}, [])
        self.open[-1].children.append(element)
        if tag not in self.EMPTY:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read_page(page: Path | str) -> Element:
    """The elements of a page: a file, or its text."""
    text = page if isinstance(page, str) else page.read_text(encoding="utf-8")
    return Reader(text).open[0]
