"""The service of docs/serving.md answers over HTTP, and the glossary holds on every page."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from pacpfl import PACPFLRegressor, load_model

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / "docs/serving.md").read_text())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    x = np.random.default_rng(0).normal(size=(20, 2))
    kind = PACPFLRegressor(rounds=0, particles=2, mean="linear", kernel="ard", random_state=0)
    fitted = kind.fit(x, x[:, 0], groups=["a", "b"] * 10)
    path = tmp_path_factory.mktemp("served") / "model.safetensors"
    fitted.save(path, groups=["a"])
    return path


def asked(app, method: str, path: str, body: object = None) -> tuple[int, object]:
    """What an ASGI application answers to one request."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers,
        "root_path": "", "scheme": "http", "server": ("test", 80), "client": ("test", 1),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(m.get("body", b"") for m in sent[1:]))


def test_the_service_answers_as_the_model_does(model, tmp_path, monkeypatch):
    pytest.importorskip("fastapi", reason="The service of docs/serving.md is made with FastAPI.")
    (code,) = [block for block in BLOCKS if block.startswith("# serve.py")]
    (tmp_path / "serve.py").write_text(code)
    monkeypatch.setenv("PACPFL_MODEL", str(model))
    app = runpy.run_path(str(tmp_path / "serve.py"))["app"]
    assert asked(app, "GET", "/features") == (200, ["x0", "x1"])
    rows = [[0.5, 1.0], [-0.2, 0.0]]
    status, said = asked(app, "POST", "/predict", {"rows": rows})
    expected = load_model(model).predict(np.array(rows), levels=[0.05, 0.95])
    assert status == 200 and np.allclose(said["mean"], expected.mean)
    assert np.allclose([said["low"], said["high"]], expected.quantiles)
    status, said = asked(app, "POST", "/predict", {"rows": [[1.0]]})
    assert status == 422 and "do not fit the model" in said["detail"]


def test_the_first_lines_of_the_page_run(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(model.parent)
    exec(BLOCKS[0], {})
    assert "('x0', 'x1')" in capsys.readouterr().out


def forbidden() -> list[str]:
    """What the last column of the glossary's table names."""
    text = (ROOT / "docs/glossary.md").read_text()
    cells = [row.strip("|").split("|")[2].strip() for row in re.findall(r"(?m)^\|.*\|$", text)[2:]]
    return [word for cell in cells for word in cell.split(", ") if word]


def test_one_word_for_one_thing():
    words = forbidden()
    assert len(words) > 10
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        if page.name != "glossary.md":
            found = re.search(rf"\b({'|'.join(words)})s?\b", page.read_text(encoding="utf-8"))
            assert not found, f"{page.relative_to(ROOT)}: {found and found[0]!r}"
