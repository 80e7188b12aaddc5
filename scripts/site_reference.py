"""What in the reference is written by the code itself: commands, configuration, lists of modules.

mkdocs.yml names this file under `hooks`. The marks `<!-- commands -->` and `<!-- configuration -->` in
a page are replaced, so that no option and no key can be missing or out of date. A line such as
`::: pacpfl.data.*` stands for all modules with such names that no page of the reference names itself.
"""

from __future__ import annotations

import fnmatch
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
REFERENCE = ROOT / "docs" / "reference"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    for mark, written in (("commands", commands), ("configuration", configuration)):
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", written())
    return re.sub(
        r"(?m)^::: (pacpfl[\w.]*\*)$",
        lambda m: "\n\n".join(f"::: {name}" for name in expand(m[1])),
        markdown,
    )


def modules() -> set[str]:
    """All modules of the package, by their names."""
    paths = [path.relative_to(SOURCE).with_suffix("").parts for path in SOURCE.rglob("*.py")]
    return {".".join(words) for words in paths if words[-1] not in ("__init__", "__main__")}


def lines() -> list[str]:
    """What the pages of the reference ask for: modules, classes and patterns."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    return re.findall(r"(?m)^::: (pacpfl[\w.]*\*?)$", text)


def expand(pattern: str) -> list[str]:
    """Modules that no line names; where several patterns fit, the longest one has it."""
    patterns = sorted((line for line in lines() if line.endswith("*")), key=len, reverse=True)
    rest = modules() - set(lines())
    owners = {n: next((p for p in patterns if fnmatch.fnmatchcase(n, p)), None) for n in rest}
    return sorted(name for name, owner in owners.items() if owner == pattern)


def named() -> set[str]:
    """All that the reference shows."""
    return {name for line in lines() for name in (expand(line) if line.endswith("*") else [line])}


def commands() -> str:
    """Every command with its arguments and options."""
    import typer.main

    from pacpfl.cli.app import app

    parts = []
    group: Any = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        words = "".join(f" {p.name.upper()}" for p in command.params if not is_option(p))
        parts += [f"## {name}", f"`pacpfl {name}{words} [options]`"]
        parts.append(inspect.cleandoc(command.help or ""))
        rows = [row(parameter) for parameter in command.params if parameter.name != "help"]
        if rows:
            parts.append("\n".join(["| | default | meaning |", "| --- | --- | --- |", *rows]))
    return "\n\n".join(parts)


def is_option(parameter: Any) -> bool:
    return str(parameter.opts[0]).startswith("-")


def row(parameter: Any) -> str:
    """One line of the table; help that ends in [something] names its default itself."""
    names = parameter.opts if is_option(parameter) else [parameter.name.upper()]
    named = ", ".join(f"`{name}`" for name in names)
    meaning, default = plain(parameter.help or ""), parameter.default
    own = re.fullmatch(r"(.*?)\.? \[([^\]]+)\]\.?", meaning)
    if parameter.required:
        given = "required"
    elif own:
        meaning, given = f"{own[1]}.", own[2]
    else:
        given = "" if default in (None, False) or callable(default) else f"`{default}`"
    return f"| {named} | {given} | {meaning} |"


def configuration() -> str:
    """Every key of every section, with its default."""
    from pacpfl.config import SECTIONS, Config

    first = next(f for f in fields(Config) if f.name == "seed")
    parts = ["\n".join([*HEAD, key(first)])]
    for name, section in SECTIONS.items():
        parts.append(f"## [{name}]" + f" {{ #{name} }}")
        words = inspect.getdoc(type(section)) or ""
        if not words.startswith(f"{type(section).__name__}("):
            parts.append(words)
        rows = [key(field) for field in fields(type(section))]
        parts.append("\n".join([*HEAD, *rows]))
    return "\n\n".join(parts)


HEAD = ("| key | default | meaning |", "| --- | --- | --- |")


def key(field: Any) -> str:
    default = field.default
    shown = "not set" if default is None else f"`{text(default)}`"
    rules = field.metadata
    meaning = plain(rules["help"])
    if "choices" in rules:
        missing = [choice for choice in rules["choices"] if choice not in meaning]
        if missing:
            meaning += f" ({', '.join(rules['choices'])})"
    return f"| `{field.name.rstrip('_')}` | {shown} | {meaning} |"


def text(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(text(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def plain(help: str) -> str:
    """Help on one line that a table can hold."""
    return " ".join(help.split()).replace("|", "\\|")
