"""The pages of the documentation, taken apart."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]


class Block(NamedTuple):
    """A code block, or code within a line (then `language` is inline)."""

    page: str  # path from the repository's root
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Pages(NamedTuple):
    root: Path
    names: tuple[str, ...]
    blocks: tuple[Block, ...]


@cache
def _pages() -> Pages:
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = tuple(path.relative_to(ROOT).as_posix() for path in paths)
    blocks = [block for name in names for block in _blocks(name)]
    return Pages(ROOT, names, tuple(blocks))


def _blocks(page: str) -> list[Block]:
    blocks = []
    parser = MarkdownIt("commonmark").enable("table")
    for token in parser.parse((ROOT / page).read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "fence":
            blocks.append(Block(page, line, token.info.strip(), token.content))
        elif token.type == "code_block":
            blocks.append(Block(page, line, "indented", token.content))
        for child in token.children or ():
            if child.type == "code_inline":
                blocks.append(Block(page, line, "inline", child.content))
    return blocks


@pytest.fixture(scope="session")
def pages() -> Pages:
    return _pages()
