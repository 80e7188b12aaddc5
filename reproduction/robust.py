"""`python -m reproduction robust`: hostile clients against the rules by which a server combines.

Rounds are those of a server across sites (`sites.guard`), on Polynomial with all 24 clients in each: they
compute, the hostile ones send something else, the server shortens what is too long, combines, and steps.
Each scenario begins with the same particles. Rows are kept as they are made, so the command goes on.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from scipy import stats

from pacpfl import files
from pacpfl.build import build_federation
from pacpfl.cli.common import say, shipped
from pacpfl.config import Config, override
from pacpfl.data.store import from_clients
from pacpfl.engine import runtime
from pacpfl.engine.evaluate import evaluate
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import first_client
from pacpfl.methods.registry import build_pacpfl
from pacpfl.sites import guard

ONCE = 10  # the round of a single message
FIELDS = ("attack", "hostile", "rule", "group", "metric", "mean", "seeds")


class Rule(NamedTuple):
    longest: float  # times the usual length; 0: as long as they like
    combine: str


RULES = {
    "mean": Rule(0, "mean"),
    "clip 10": Rule(10, "mean"),
    "clip 1": Rule(1, "mean"),
    "clip 1 + trimmed": Rule(1, "trimmed"),
    "clip 10 + trimmed": Rule(10, "trimmed"),
    "clip 10 + median": Rule(10, "median"),
    "clip 10 + geometric median": Rule(10, "geometric-median"),
}


def against(honest: np.ndarray, rule: Rule) -> np.ndarray:
    """The longest update that the rule lets through, against the mean of the others."""
    wrong, size = -honest.mean(0), np.linalg.norm(honest, axis=1)
    return wrong / np.linalg.norm(wrong) * np.median(size) * (0.99 * rule.longest or 10)


def little(honest: np.ndarray, hostile: int) -> np.ndarray:
    """As far from the mean as hides among the others (Baruch, Baruch & Goldberg 2019)."""
    others = len(honest)
    n = others + hostile
    share = (others - (n // 2 + 1 - hostile)) / others
    return honest.mean(0) - max(0.5, float(stats.norm.ppf(share))) * honest.std(0)


Attack = Callable[[np.ndarray, np.ndarray, int, Rule], np.ndarray]  # own, honest, round, rule
ATTACKS: dict[str, Attack] = {
    "-1x": lambda own, honest, number, rule: -own,
    "-10x": lambda own, honest, number, rule: -10 * own,
    "1000x": lambda own, honest, number, rule: 1000 * own,
    "1e22 once": lambda own, honest, number, rule: (
        np.full_like(own, 1e22) if number == ONCE else own
    ),
    "against the mean": lambda own, honest, number, rule: np.tile(
        against(honest, rule), (len(own), 1)
    ),
    "a little": lambda own, honest, number, rule: np.tile(little(honest, len(own)), (len(own), 1)),
}


class Scenario(NamedTuple):
    attack: str
    hostile: int
    rule: str


def scenarios() -> Iterator[Scenario]:
    for rule in RULES:
        yield Scenario("none", 0, rule)
    for attack in ATTACKS:
        for hostile in (1, 5):
            yield from (Scenario(attack, hostile, rule) for rule in RULES)


class World:
    """A federation and its method, compiled once for all scenarios of a seed."""

    def __init__(self, config: Config) -> None:
        self.config, self.federation = config, build_federation(config)
        store, self.keys = from_clients(self.federation.existing), Keys.of(config.seed)
        self.count = store.clients
        everyone = np.arange(self.count)
        self.method = build_pacpfl(config, self.federation.form)
        self.data = jax.device_put(store.gather(everyone, config.run.dtype))
        self.start = self.method.init(self.keys.start(), first_client(store, config.run.dtype))
        self.update = jax.jit(jax.vmap(self._one, in_axes=(None, 0, None, 0)))
        self.step = jax.jit(self.method.server_update)

    def _one(self, state: PyTree, data: PyTree, number: jax.Array, client: jax.Array) -> PyTree:
        return self.method.client_update(state, (), data, self.keys.update(number, client))[0]

    def play(self, scenario: Scenario) -> dict[str, float]:
        """Train with these clients and this rule; return the RSMSE by group, NaN where nothing is left."""
        rule, state, numbers = RULES[scenario.rule], self.start, jnp.arange(self.count)
        # The hostile ones are drawn, as clients stand in order of their kind.
        drawn = np.random.default_rng(self.config.seed).permutation(self.count)
        bad, good = drawn[: scenario.hostile], drawn[scenario.hostile :]
        weights: np.ndarray = np.ones(self.count, self.config.run.dtype)
        for number in range(self.config.train.rounds):
            sent = self.update(state, self.data, jnp.int32(number), numbers)
            if scenario.hostile:
                sent = self._spoil(sent, bad, good, number, scenario)
            sites = {
                str(i): jax.tree.map(lambda a, i=i: np.asarray(a)[i : i + 1], sent) for i in drawn
            }
            if rule.longest:
                sites, _ = guard.shorten(sites, rule.longest, self.config.run.dtype)
            ordered = [sites[str(i)] for i in range(self.count)]
            whole = jax.tree.map(lambda *rows: np.concatenate(rows), *ordered)
            whole = guard.combined(whole, weights, rule.combine, self.config.run.dtype)
            new = self.step(state, whole, weights, self.keys.step(number, self.count))
            if guard.is_finite(new):  # else the step is undone, as at a server
                state = new
        found = evaluate(
            self.method, state, self.federation, seed=self.config.seed, dtype=self.config.run.dtype
        )
        return {g: float(np.mean([r["rsmse"] for r in e.rows])) for g, e in found.items()}

    def _spoil(
        self, sent: PyTree, bad: np.ndarray, good: np.ndarray, number: int, scenario: Scenario
    ) -> PyTree:
        rows = np.array(sent.gradients, np.float64)
        flat = rows.reshape(len(rows), -1)
        attack, rule = ATTACKS[scenario.attack], RULES[scenario.rule]
        flat[bad] = attack(flat[bad], flat[good], number, rule)
        return sent._replace(gradients=rows.astype(self.config.run.dtype))


def table(rows: list[dict[str, str]]) -> str:
    """Return the means over seeds, as CSV."""
    cells: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        place = tuple(row[name] for name in FIELDS[:4])
        cells.setdefault(place, []).append(float(row["rsmse"]))
    lines = [",".join(FIELDS)]
    for place, values in cells.items():
        lines.append(",".join((*place, "rsmse", f"{np.mean(values):.4f}", str(len(values)))))
    return "\n".join(lines) + "\n"


def play(out: Path, seeds: int, rounds: int) -> None:
    """Play all scenarios that are not in the folder yet."""
    runtime.configure()
    path = out / "outcomes.csv"
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.is_file() else []
    done = {tuple(row[name] for name in ("seed", "attack", "hostile", "rule")) for row in rows}
    for seed in range(seeds):
        world = World(override(shipped("polynomial"), [f"seed={seed}", f"rounds={rounds}"]))
        for scenario in scenarios():
            if (str(seed), scenario.attack, str(scenario.hostile), scenario.rule) in done:
                continue
            for group, value in world.play(scenario).items():
                about = {"seed": str(seed), **{n: str(v) for n, v in scenario._asdict().items()}}
                rows.append({**about, "group": group, "rsmse": f"{value:.6f}"})
            lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows), ""]
            files.write(path, "\n".join(lines).encode())
            files.write(out / "table.csv", table(rows).encode())
            say(f"seed {seed}, {', '.join(map(str, scenario))}: {rows[-1]['rsmse']}")
