"""Whom federating helps and whom it does not, in words: all clients together, and one alone."""

from __future__ import annotations

import math

import numpy as np

from pacpfl.report.class_words import points
from pacpfl.report.folder import Run
from pacpfl.report.judge import Judged, going_alone
from pacpfl.report.measures import counted, number, percent
from pacpfl.report.significance import LEVEL

TESTED = (
    f"paired tests on their test samples at the {percent(LEVEL)} level for all of them together"
)


def how_to_compare(run: Run) -> str:
    """What to do so that the page can tell whom federating helps."""
    names = ", ".join(f'"{name}"' for name in [*run.titles, "vanilla"])
    return (
        "No method that goes alone ran beside it, so this page cannot tell whom federating helps; run "
        f"the same command again with --set 'methods=[{names}]' (what is trained is not trained again)."
    )


def size(run: Run, value: float) -> str:
    """How large a gain is, without its sign."""
    return points(abs(value)) if run.classification else percent(abs(value))


def for_whom(run: Run, judged: list[Judged]) -> list[str]:
    """Of all clients together: how many are better off, by how much, who loses most, is it chance."""
    alone = going_alone(run)
    if alone is None:
        return [how_to_compare(run)] if "particles" in run.methods[run.main] else []
    known = [client for client in judged if math.isfinite(client.gain)]
    if not known:
        return []
    gains = np.array([client.gain for client in known])
    better, worse = int((gains > 0).sum()), int((gains < 0).sum())
    what = "is more accurate for" if run.classification else "has the smaller error for"
    text = (
        f"Against going alone ({run.titles[alone]}), {run.titles[run.main]} {what} {better} of "
        f"{len(known)} clients"
    )
    middle = float(np.median(gains))
    change = (
        ("gains" if middle >= 0 else "loses")
        if run.classification
        else ("has %s less error" if middle >= 0 else "has %s more error")
    )
    told = f"{change} {size(run, middle)}" if run.classification else change % size(run, middle)
    text += f"; the client in the middle {told}."
    sentences = [text]
    if worse:
        worst = min(known, key=lambda client: client.gain)
        lost = f"{size(run, worst.gain)} {'lost' if run.classification else 'more error'}"
        verb = "does" if worse == 1 else "do"
        sentences.append(
            f"{counted(worse, 'client')} {verb} better alone, {worst.name} the most ({lost})."
        )
    else:
        sentences.append("No client does better alone.")
    return [*sentences, *_beyond_chance(known)]


def _beyond_chance(known: list[Judged]) -> list[str]:
    tested = [client for client in known if client.verdict != "unknown"]
    if not tested:
        return []
    helped = sum(client.verdict == "helped" for client in tested)
    hurt = sum(client.verdict == "hurt" for client in tested)
    return [
        f"Beyond chance it helps {counted(helped, 'client')} and hurts {hurt or 'none'} ({TESTED}); "
        "for the others the difference could be chance."
    ]


def of_one(run: Run, client: Judged, alone: str | None, leads: dict[str, float]) -> str:
    """What federating did for one client; `leads` has its first measure with each method."""
    if alone is None:
        return how_to_compare(run)
    if not math.isfinite(client.gain):
        return f"There is no number of {run.titles[alone]} for this client to compare with."
    lead = run.measures[0].title
    values = (
        f"{lead} {number(leads[run.main])} with {run.titles[run.main]}, {number(leads[alone])} alone "
        f"({run.titles[alone]})"
    )
    if client.gain == 0:
        start = "Federating changed nothing for this client"
    elif run.classification:
        what = "Federating added" if client.gain > 0 else "Federating cost it"
        start = f"{what} {size(run, client.gain)} of accuracy"
    else:
        less = "less" if client.gain > 0 else "more"
        start = f"Federating left it with {size(run, client.gain)} {less} error"
    verdict = {
        "helped": ", more than chance",
        "hurt": ", more than chance",
        "chance": ", which could be chance",
        "unknown": "",
    }[client.verdict]
    return f"{start}{verdict}: {values}."
