"""What MkDocs does not do by itself: notebooks become pages, and so do pages at the repository's root.

mkdocs.yml names this file under `hooks`. A notebook's stored outputs are shown as they are; building
the site runs nothing.
"""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FROM_THE_ROOT = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    made: dict[str, str | bytes] = {}
    for file in files:
        if file.src_uri.endswith(".ipynb"):
            path = Path(file.abs_src_path)
            text, figures = page(json.loads(path.read_text(encoding="utf-8")), path.stem)
            made[file.src_uri.removesuffix(".ipynb") + ".md"] = text
            folder = file.src_uri.rpartition("/")[0]
            made |= {f"{folder}/{name}": picture for name, picture in figures.items()}
    for name, place in FROM_THE_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        made[place] = re.sub(r"\]\(docs/", "](", text)
    for place, content in made.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to notebooks lead to their pages (but for the one that hands out the file); numbers stay
    together with their intervals; pages at the root are where `on_files` puts them."""
    markdown = markdown.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")
    for name, place in FROM_THE_ROOT.items():
        markdown = markdown.replace(f"](../{name}", f"]({place}")
    return re.sub(r"\]\(([^)\s:]+)\.ipynb\)(?!\{)", r"](\1.md)", markdown)


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook, and its figures by the names it uses."""
    parts: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(fenced(text, "python"))
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(fenced("".join(output["text"]), "text .output"))
                continue
            data = output["data"]
            if "image/png" in data:
                file = f"{name}-{len(figures) + 1}.png"
                figures[file] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![{alternative(text)}]({file})")
            elif "text/html" in data:
                parts.append(f"<div markdown='0'>{table(''.join(data['text/html']))}</div>")
            else:
                parts.append(fenced("".join(data["text/plain"]), "text .output"))
    first, _, rest = "\n\n".join(parts).partition("\n")
    note = (
        f"This page is a notebook: [download it]({name}.ipynb){{ download }}. What it printed and drew "
        "is stored in it; the tests run its code."
    )
    return f"{first}\n\n{note}\n{rest}\n", figures


def fenced(text: str, kind: str) -> str:
    first = kind.split()[0]
    opening = f"{{ .{' .'.join([first, *(word[1:] for word in kind.split()[1:])])} }}"
    return f"```` {opening}\n{text.rstrip()}\n````"


def alternative(code: str) -> str:
    """A figure's words for those who do not see it: the comment at the head of its cell."""
    comments = []
    for line in code.splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# "))
    return html.escape(" ".join(comments) or "Figure").replace("[", "(").replace("]", ")")


def table(text: str) -> str:
    """pandas' table without its own looks, and without blank lines, which would end the HTML block."""
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' (border="1"|class="dataframe"|style="[^"]*")', "", text)
    return "".join(line.strip() for line in text.splitlines())
