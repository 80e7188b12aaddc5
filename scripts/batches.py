"""What a batch stands for: its own evidence m/b times, or ln Z at temperature m/b as Algorithm 2 prints it.

    python scripts/batches.py [--rows 250 1000 4000] [--seeds 2]

Twelve sites share a function of three features, with a line of their own; the noise grows with the third
feature. Rounds see 64 rows of each site. Every site is then conditioned on 500 of its rows, and measured
on 500 others. Writes docs/results/batches/README.md.
"""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

import numpy as np

from pacpfl.config import Config, updated
from pacpfl.data.store import from_clients
from pacpfl.engine import runtime
from pacpfl.engine.evaluate import evaluate
from pacpfl.engine.simulate import train
from pacpfl.files import write
from pacpfl.methods.registry import build_pacpfl
from pacpfl.types import Client, Federation, Samples

SITES, KNOWN, TESTED, BATCH = 12, 500, 500, 64
SETTINGS = {
    "prior.mean": "linear+mlp", "prior.kernel": "ard+linear", "prior.output_scale": "learned",
    "prior.noise_spread": 0.5, "train.tau": 0.3, "train.hyper_std": 0.5, "train.rounds": 400,
    "train.learning_rate": 0.03, "train.batch": BATCH,
}  # fmt: skip
MEASURES = {"RSMSE": "rsmse", "NLL": "nll", "inside 90%": "coverage_90"}
RULES = {"m/b ln Z of the batch": "evidence", "as printed": "printed"}


def draw(random: np.random.Generator, slope: np.ndarray, rows: int) -> Samples:
    """Return rows of a site: in units of the noiseless target's spread, about."""
    x = random.normal(size=(rows, 3))
    signal = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + x @ slope
    noise = 0.3 * np.exp(0.5 * x[:, 2]) * random.normal(size=rows)
    return Samples(x, (signal + noise) / 1.2)


def measure(rule: str, rows: int, seed: int) -> dict[str, float]:
    """Train with so many rows at every site, and return the means over the sites."""
    random = np.random.default_rng([seed, rows])
    clients = []
    for number in range(SITES):
        slope = 0.2 * random.normal(size=3)
        parts = (draw(random, slope, size) for size in (rows, TESTED))
        clients.append(Client(f"site {number}", next(parts), test=next(parts)))
    config = updated(Config(), SETTINGS | {"train.batch_rule": rule, "seed": seed}, "batches")
    federation = Federation("batches", tuple(clients), features=("a", "b", "c"))
    method = build_pacpfl(config, federation.form)
    trained = train(
        method, from_clients(clients), rounds=config.train.rounds, seed=seed, matrices_per_client=4
    )
    known = tuple(
        Client(c.name, Samples(c.train.x[:KNOWN], c.train.y[:KNOWN]), test=c.test) for c in clients
    )
    found = evaluate(method, trained.state, Federation("batches", known), seed=seed)["existing"]
    return {title: float(np.mean([r[key] for r in found.rows])) for title, key in MEASURES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[250, 1000, 4000])
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    runtime.configure()
    lines = [
        "| rows of a site | " + " | ".join(f"{r}: {m}" for r in RULES for m in MEASURES) + " |"
    ]
    lines.append("| ---: |" + " ---: |" * len(RULES) * len(MEASURES))
    for rows in asked.rows:
        cells = []
        for rule in RULES.values():
            every = [measure(rule, rows, seed) for seed in range(asked.seeds)]
            cells += [f"{np.mean([one[title] for one in every]):.3f}" for title in MEASURES]
        lines.append(f"| {rows:,} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    head = (
        f"# What a batch stands for\n\n`python scripts/batches.py`, {date.today()}, {asked.seeds} seeds, "
        f"{runtime.machine()}. {SITES} sites, {BATCH} rows of each in a round; models know "
        f"{KNOWN} rows of their site. docs/theory.md has the reason.\n\n"
    )
    path = Path(__file__).resolve().parents[1] / "docs" / "results" / "batches" / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, (head + "\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
