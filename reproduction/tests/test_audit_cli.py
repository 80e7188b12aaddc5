"""`python -m reproduction audit`."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from pacpfl.errors import InputError
from reproduction import audit, cli_audit
from reproduction.audit_statistics import Bound

app = typer.Typer()
app.command()(cli_audit.audit)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_an_honest_mechanism() -> None:
    code, text = run("laplace", "--epsilon", "2", "--dimension", "2", "--trials", "4000")
    assert code == 0
    assert "delta = 0" in text and "one client more or less" in text and "95% confidence" in text
    assert "The epsilon accounted is 2.000: not refuted." in text


def test_the_printed_claim() -> None:
    """It is refuted, which is no failure: nobody guaranteed it."""
    code, text = run("paper", "--epsilon", "2", "--dimension", "100", "--trials", "4000")
    assert code == 0
    assert "stated (without a guarantee) is 2.000: REFUTED." in text


def test_a_broken_guarantee_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = Bound(3.0, 0.0, 0.95, 0.1, 0.2, 100, "Clopper-Pearson")
    found = audit.Audited(bound, 2.0, "add-remove", True)
    monkeypatch.setattr(audit, "audit_mechanism", lambda *a, **k: found)
    code, text = run("laplace")
    assert code == 1
    assert "at least 3.000" in text and "REFUTED" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["laplce"], "'laplce'"),
        (["laplace", "--sampling", "some"], "'some'"),
        (["laplace", "--rate", "2"], "between 0 and 1"),
        (["laplace", "--one-run", "--training"], "--training"),
    ],
)
def test_mistakes_are_told_in_one_sentence(arguments: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run(*arguments)
