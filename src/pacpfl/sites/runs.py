"""A run across sites from the operator's side: its folder, its segments, and what a site does with it."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pacpfl import config as configuration
from pacpfl import files
from pacpfl.build import build_federation
from pacpfl.config import Config
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.engine.compiled import Rounds, make_call
from pacpfl.engine.evaluate import evaluate
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import divide, first_client, initial_client_states, round_inputs
from pacpfl.engine.training import Checkpoint, load_checkpoint, save_checkpoint
from pacpfl.errors import InputError, Interrupted
from pacpfl.files import Facts
from pacpfl.folder import MethodResult, RunFolder
from pacpfl.methods.base import Method
from pacpfl.methods.registry import entry
from pacpfl.methods.transforms import compressed
from pacpfl.run import Watcher, run_identity
from pacpfl.sites import participation
from pacpfl.sites.limits import FILE as SITE_FILE
from pacpfl.sites.limits import read_site_file
from pacpfl.sites.participation import Record
from pacpfl.sites.recipe import recipe_of, shapes_of
from pacpfl.sites.segment import CHECKPOINT, FORM
from pacpfl.sites.sharing import site_federation
from pacpfl.sites.states import Memories, load_tree
from pacpfl.sites.supervisor import Care, Stopped, Supervisor
from pacpfl.sites.terms import CONFIG, TERMS, Terms
from pacpfl.sites.wire import to_form
from pacpfl.types import Form

if TYPE_CHECKING:
    from pacpfl.sites.session import Console


def prepare_run(out: Path, config: Config, method: str, terms: Facts) -> tuple[Path, Terms]:
    """Prepare the folder that server and supervisor share for one method; return it and the terms."""
    RunFolder(out).prepare(config)
    folder = out / "sites" / method
    path = folder / TERMS
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    made = Terms(before.get("run") or secrets.token_hex(8), 0, **terms)
    if before.get("encoding", made.encoding) != made.encoding:
        raise InputError(
            f"{out} was begun with encoding {before['encoding']!r}; go on with the same one, or start "
            "over with --fresh."
        )
    files.write_json(path, asdict(made) | {"method": method})
    files.write(folder / CONFIG, configuration.dump(config).encode())
    return folder, made


def train_at_sites(
    config: Config,
    folder: Path,
    about: Facts,
    console: Console,
    watcher: Watcher,
    fresh: bool = False,
    demonstration: bool = False,
) -> Config | None:
    """Train every method of the configuration that learns in rounds, at the sites.

    `about` is what the administrator's kit says of itself, `folder` the run folder at the server, and
    `console` a line to it; `fresh` forgets what an earlier run in the folder has reached. In a
    `demonstration` the sites hold the data set that the configuration names: returned is the configuration
    with which `run.run` only personalises and measures. Else the sites do that (pacpfl site personalize).
    """
    sites = tuple(about.get("sites", ()))
    terms = {"quorum": len(sites) // 2 + 1} | about.get("terms", {})
    if fresh and (folder / "sites").exists():
        shutil.rmtree(folder / "sites")
    handed = []
    for method in config.run.methods:
        title = entry(method).title
        if not entry(method).in_rounds:
            handed.append(method)
            continue
        place, made = prepare_run(folder, config, method, terms)

        def stage(text: str, title: str = title) -> None:
            watcher.stage(f"{title}: {text}")

        told = replace(watcher, stage=stage)
        care = Care(sites, made.needed, strangers=True)
        try:
            Supervisor(console, place, made.run, config.train.rounds, care, told).run()
        except Stopped as reason:
            raise Interrupted(str(reason)) from None
        if demonstration and hand_over(place, folder, config, method):
            handed.append(method)
    if not demonstration:
        return None
    return replace(config, run=replace(config.run, methods=tuple(handed)))


def summaries(folder: Path) -> dict[str, Facts]:
    """Return what the logs of a run folder say of each method's training across sites."""
    runs = {}
    for place in sorted((folder / "sites").glob("*")):
        form = place / FORM
        sizes = json.loads(form.read_text())["sizes"] if form.exists() else {}
        runs[place.name] = participation.summary(place) | {"sizes": sizes}
    if not runs:
        raise InputError(f"{folder} holds no run across sites; name the run folder with --run.")
    return runs


def without(folder: Path, sites: Collection[str]) -> dict[str, str]:
    """Return the sites of the project that were not there at the end of a method's training, and why."""
    lost: dict[str, str] = {}
    for place in sorted((folder / "sites").glob("*")):
        there: set[str] = set()
        why: dict[str, str] = {}
        for line in participation.entries(place / participation.FILE):
            if line["kind"] == "segment":
                there, why = set(line.get("sites", ())), dict(line.get("refused", {}))
            for site in line.get("missing", ()):
                why[site] = f"no answer to round {line['round']}"
            why |= line.get("refused", {})
            there = (there | set(line.get("sites", ()))) - set(line.get("missing", ()))
            there -= set(line.get("refused", {}))
        lost |= {s: why.get(s, "it was not connected") for s in sites if s not in there}
    return lost


def load_trained(folder: Path, config: Config, method: str) -> tuple[Method, Form, Checkpoint]:
    """Read back what a run across sites has reached, at the server."""
    recipe = recipe_of(config, method)
    remedy = "start the run across sites, and wait for its first rounds"
    whole = to_form(files.read_json(folder / FORM, remedy)["form"])
    made = compressed(recipe.build(whole), files.read_json(folder / TERMS, remedy)["encoding"])
    template = shapes_of(made, recipe, whole).state, ()
    checkpoint = load_checkpoint(folder / CHECKPOINT, template, recipe.identity)
    if checkpoint is None:
        raise InputError(f"{folder} holds no checkpoint yet; wait for the first rounds.")
    return made, whole, checkpoint


def hand_over(folder: Path, out: Path, config: Config, method: str) -> bool:
    """Leave the result where the simulator would, so that `run` only personalises and measures.

    For a demonstration, where the data set that the configuration names IS what the sites hold. False
    where clients keep something between rounds: it stays at the sites.
    """
    made, whole, checkpoint = load_trained(folder, config, method)
    if jax.tree.leaves(shapes_of(made, recipe_of(config, method), whole).memory):
        return False
    store = from_clients(build_federation(config).existing)
    save_checkpoint(RunFolder(out).checkpoint(method), checkpoint, run_identity(config, store))
    return True


def personalize_site(folder: Path, out: Path, run: str | None = None) -> dict[str, MethodResult]:
    """Personalise and measure a site's own clients after training; write a run folder for its report.

    `folder` is the site's own; nothing is sent anywhere.
    """
    place = _model_folder(folder, run)
    about = json.loads((place / "model.json").read_text(encoding="utf-8"))
    config = configuration.load_file(place / CONFIG)
    method, whole = about["method"], to_form(about["data"])
    config = replace(config, run=replace(config.run, methods=(method,)))
    recipe = recipe_of(config, method)
    file = read_site_file(folder / SITE_FILE)
    own = site_federation(config, file.data, file.sharing)
    numbers = [i for i, client in enumerate(own.existing) if client.test is not None]
    if not numbers:
        raise InputError(
            "No client of this site has test samples, so there is nothing to measure; add x_test and "
            "y_test to its files."
        )
    own = replace(own, existing=tuple(own.existing[i] for i in numbers), new=())
    made = compressed(recipe.build(whole), about["encoding"])
    shapes = shapes_of(made, recipe, whole)
    state = jax.device_put(load_tree(place / "state.safetensors", shapes.state))
    started = datetime.now(UTC)
    groups = evaluate(
        made,
        state,
        own,
        client_states=_memories(Memories(folder / "states" / place.name, shapes.memory), numbers),
        seed=config.seed,
        dtype=recipe.dtype,
        matrices_per_client=max(1, entry(method).memory(config, own.form).matrices),
        clients_at_once=entry(method).clients_at_once(config, own, recipe.dtype),
        recalibration=config.run.recalibration if entry(method).particles else "never",
    )
    groups = {name: group for name, group in groups.items() if group.rows}
    result = MethodResult({"title": entry(method).title, "rounds": about["rounds"]}, {}, groups)
    report = RunFolder(out)
    report.prepare(config)
    report.write(config, own, {method: result}, started)
    return {method: result}


def _model_folder(folder: Path, run: str | None) -> Path:
    found = (folder / "models").glob(f"{run or '*'}/model.json")
    chosen = sorted(found, key=lambda path: path.stat().st_mtime)
    if not chosen:
        raise InputError(
            f"{folder} holds no result of {'a run' if run is None else f'run {run}'}; results arrive "
            "when a training ends while the site is connected."
        )
    return chosen[-1].parent


def _memories(memories: Memories, clients: list[int]) -> PyTree:
    def latest(client: int) -> PyTree:
        kept = memories.kept(client)
        if not kept:
            raise InputError(
                f"Client {client} of this site took no part in the run, and what it would have kept is "
                "not known; personalise it as a new client."
            )
        return memories.recall(client, kept[-1])

    return memories.rows(clients, latest)


def replay(
    build: Callable[[int], Method],
    store: ClientStore,
    record: Record,
    *,
    seed: int,
    dtype: type,
    matrices_per_client: int = 1,
) -> tuple[PyTree, PyTree]:
    """Compute a run across sites again, in one process, from its participation log.

    With the clients' data in one place (a test, an audit) the simulator's own functions, given the
    clients that took part in each round, must end with the particles that the sites ended with. `build`
    makes the method for n clients; `store` holds all clients of the roster by number. Returns the
    server's and the clients' states after the record's last round.
    """
    keys = Keys.of(seed)
    sizes = sorted({one.total for one in record.rounds})
    method = build(sizes[0] if sizes else store.clients)
    state = jax.jit(method.init)(keys.start(), first_client(store, dtype))
    client_states = initial_client_states(method, state, store, keys, dtype)
    itemsize = jnp.zeros((), dtype).dtype.itemsize
    layout = divide(store.clients, store.longest, matrices_per_client, itemsize)
    calls = {n: make_call(Rounds(build(n), layout, 1, False, n), keys) for n in sizes}
    for one in record.rounds:
        chosen = np.array(one.clients, int)
        inputs = round_inputs(store, [chosen], layout.slots, dtype)
        state, client_states, _ = calls[one.total](state, client_states, inputs, one.number, 1)
    return state, client_states
