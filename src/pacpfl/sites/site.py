"""What happens at a site: requests in, answers out. No network here.

    hello    a configuration -> what the site's data look like, or why it refuses
    begin    the whole federation's form -> the method, built and compiled
    train    a round's state and who takes part -> their updates
    secure   a step of a secure round, in place of `train` (secure_site.py)
    finish   the final state -> kept at the site, for `pacpfl site personalize`

Every request is checked against the site's limits. The data stay in this object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from pacpfl import files
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import fill, initial_client_states
from pacpfl.errors import InputError, SecureAggregationError
from pacpfl.files import Facts
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import ENCODINGS, compressed, summed
from pacpfl.secagg.certified import Passport
from pacpfl.sites import said, wire
from pacpfl.sites.limits import Limits, Tally, note_refusal
from pacpfl.sites.recipe import Recipe, Shapes, example, shapes_of
from pacpfl.sites.secure import contract_of, size_of, to_rows
from pacpfl.sites.secure_site import SecureSite
from pacpfl.sites.states import NEVER, Memories, save_tree
from pacpfl.sites.wire import MESSAGE, Refused, refusing, to_form
from pacpfl.types import Data, Federation
from pacpfl.version import __version__

AT_ONCE = 64  # clients in one compiled call, at most
CODES = {"hello": "data", "begin": "configuration", "secure": "protocol"}  # unless it has its own
Answer = tuple[dict[str, np.ndarray], Facts]


@dataclass(frozen=True)
class Work:
    """A run that has begun at this site: its method, compiled."""

    recipe: Recipe
    store: ClientStore
    method: Method
    first: int  # number of the site's first client
    shapes: Shapes
    memories: Memories
    traces: list[int] = field(default_factory=lambda: [0])

    @property
    def keys(self) -> Keys:
        return Keys.of(self.recipe.seed)

    def compile(self) -> None:
        """Compile what a round needs, by way of an update that nobody sees."""
        everyone = np.arange(min(self.store.clients, AT_ONCE))
        self.compute(self.shapes.state, self.recall(everyone, [NEVER] * len(everyone)), everyone, 0)

    def compute(
        self, state: PyTree, own: PyTree, chosen: np.ndarray, number: int
    ) -> tuple[PyTree, PyTree]:
        """Compute updates and new states of the chosen clients, in calls of few different sizes."""
        parts = []
        for start in range(0, len(chosen), AT_ONCE):
            some = chosen[start : start + AT_ONCE]
            count = len(some)
            slots = min(AT_ONCE, self.store.clients, 1 << (count - 1).bit_length())
            filled = fill(some, max(slots, count))
            rows = np.minimum(start + np.arange(len(filled)), len(chosen) - 1)
            data = jax.device_put(self.store.gather(filled, self.recipe.dtype))
            mine = jax.device_put(jax.tree.map(lambda a, rows=rows: a[rows], own))
            numbers = jax.device_put((self.first + filled).astype(np.int32))
            result = self._update(state, mine, data, jnp.int32(number), numbers)
            parts.append(jax.tree.map(lambda a, m=count: np.asarray(a)[:m], result))
        return jax.tree.map(lambda *a: np.concatenate(a), *parts)

    @cached_property
    def _update(self) -> Callable[..., PyTree]:
        def one(
            state: PyTree, own: PyTree, data: Data, number: jax.Array, client: jax.Array
        ) -> PyTree:
            self.traces[0] += 1
            return self.method.client_update(state, own, data, self.keys.update(number, client))

        return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, None, 0)))

    def recall(self, chosen: np.ndarray, after: list[int]) -> PyTree:
        """Return the states that the server counts on: each after the client's last round that counted."""
        last = dict(zip(chosen.tolist(), after, strict=True))

        def one(client: int) -> PyTree:
            if last[client] != NEVER:
                return self.memories.recall(client, last[client])
            return jax.tree.map(lambda a: a[client], self._initial)

        return self.memories.rows(list(last), one)

    @cached_property
    def _initial(self) -> PyTree:
        """All clients' states before their first round, as the simulator makes them."""
        start, dtype = self.shapes.state, self.recipe.dtype
        made = initial_client_states(self.method, start, self.store, self.keys, dtype, self.first)
        return jax.tree.map(np.asarray, made)


class Site:
    """One site in one run: it lives as long as its process."""

    def __init__(
        self,
        name: str,
        folder: Path,
        limits: Limits,
        open_run: Callable[[str, str], tuple[Recipe, Callable[[], Federation]]],
        passport: Passport | None = None,
    ) -> None:
        self.name, self.folder, self.limits = name, folder, limits
        self._open_run, self._passport = open_run, passport
        self._run = self._config = ""  # to which this site was invited
        self._secure: SecureSite | None = None  # then nothing leaves it but in secure rounds
        self._work: Work | None = None
        self._rounds = Tally(folder / "rounds.json")
        self._hellos = Tally(folder / "hellos.json")

    def answer(self, params: object, text: object) -> tuple[dict[str, np.ndarray], str]:
        """Answer a request; a refusal is an answer, too, and is written down here."""
        asked: Facts = {}
        try:
            about = wire.from_text(text)
            logged = ("task", "run", "round", "step", "method")
            asked = {
                k: v if isinstance(v := about[k], int) else str(v)[:80]
                for k in logged
                if k in about
            }
            arrays, message = self._answer(params, about)
            return self._say(asked, arrays, {**message, "site": self.name, "run": about["run"]})
        except (Refused, InputError, SecureAggregationError) as error:
            usual = CODES.get(str(asked.get("task")), "request")
            code, reason = getattr(error, "code", "") or usual, str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            code = "request"
            reason = f"the request makes no sense ({type(error).__name__}: {error})"
        except Exception as error:  # whatever it is, what it says may quote the data
            code, reason = "failed", f"{type(error).__name__}: {error}"
        note_refusal(self.folder, reason, asked)
        refusal = {"refused": code, "site": self.name, "version": __version__}
        return self._say(asked, wire.empty(), refusal)

    def _say(
        self, asked: Facts, arrays: dict[str, np.ndarray], message: Facts
    ) -> tuple[dict[str, np.ndarray], str]:
        """Write an answer down, and only then let it leave."""
        text = wire.to_text(message)
        said.note(self.folder, asked, arrays, message)
        return arrays, text

    def _answer(self, params: object, about: Facts) -> Answer:
        task = about.get("task")
        if task == "hello":
            return self._hello(about)
        if not self._run or about["run"] != self._run:
            raise Refused("the request belongs to another run than the one that was opened")
        if task == "begin":
            return self._begin(about)
        tasks = {"train": self._train, "secure": self._step, "finish": self._finish}
        if task not in tasks:
            raise Refused(f"there is no task {str(task)[:40]!r}")
        return tasks[task](params, about)

    def _hello(self, about: Facts) -> Answer:
        with refusing("version"):
            wire.same_major(__version__, about["version"])
        run = about["run"]
        if not isinstance(run, str) or not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise Refused("a run is named by 8 to 64 digits 0 to 9, a to f", "request")
        self.limits.check_count("hellos", self._hellos.read().total())
        self._hellos.add(run)
        config, secure = str(about["config"]), about.get("secure", False) is True
        with refusing("configuration"):
            recipe, read = self._open_run(config, str(about["method"]))
        self.limits.check_request(recipe, secure)
        self.limits.check_count("rounds", self._rounds.read().total())
        federation = read()
        self.limits.check_samples([len(client.train) for client in federation.existing])
        form, guarded = federation.form, None
        message: Facts = {"version": __version__}
        if secure:
            if self._passport is None:
                raise Refused(
                    "this site has no certificate with which to vouch for its keys", "kit"
                )
            guarded = SecureSite(self.name, self.folder, self._passport, run)
            message["introduction"] = guarded.introduction
        if not self.limits.share_sizes:
            form = form._replace(sizes=None)
        self._store = from_clients(federation.existing, roomy=federation.classes is not None)
        self._recipe, self._secure, self._work = recipe, guarded, None
        self._run, self._config = run, config
        return wire.empty(), message | {"data": form._asdict()}

    def _begin(self, about: Facts) -> Answer:
        recipe, secure = self._recipe, self._secure
        whole, encoding = to_form(about["data"]), about["encoding"]
        if encoding not in ENCODINGS:
            raise Refused(f"there is no encoding {str(encoding)[:20]!r}")
        built = recipe.build(whole)
        method = compressed(built, encoding) if secure is None else summed(built)
        start = Keys.of(recipe.seed).start()
        state = jax.eval_shape(method.init, start, example(recipe, whole))
        self.limits.check_model(wire.count(state))
        shapes = shapes_of(method, recipe, whole)
        if secure is not None:
            dimension = size_of(shapes.update)
            contract = contract_of(self._config, recipe.method, about["data"], about["seats"])
            shown, n = about["introductions"], whole.clients
            secure.begin(about["secure"], shown, method, dimension, n, contract)
        memories = Memories(self.folder / "states" / self._run, shapes.memory)
        first = int(about["seats"][self.name])
        work = Work(recipe, self._store, method, first, shapes, memories)
        work.compile()
        self._work = work
        return wire.empty(), {"ready": True}

    def _train(self, params: object, about: Facts) -> Answer:
        if self._secure is not None:
            raise Refused("this run's updates leave the site in secure rounds only")
        updates, told = self._updates(params, about)
        return wire.to_wire(updates), told

    def _step(self, params: object, about: Facts) -> Answer:
        """Take one step of a secure round; the first one computes the updates, which stay here."""
        if self._secure is None:
            raise Refused("a secure round was asked for in a run without them")
        told: Facts = {"round": about["round"]}
        if about["step"] == "advertise":
            updates, told = self._updates(params, about)
            if len(jax.tree.leaves(updates)[0]) != self._begun().store.clients:
                raise Refused("a secure round takes all clients of a site")
            assert isinstance(params, Mapping)
            message = self._secure.advertise(about, params, to_rows(updates))
        else:
            message = self._secure.step(params, about)
        return wire.from_messages({MESSAGE: message}), told | {"step": about["step"]}

    def _updates(self, params: object, about: Facts) -> tuple[PyTree, Facts]:
        work = self._begun()
        number, saved = int(about["round"]), int(about["saved"])
        pairs = about["take"][self.name]
        chosen = np.array([int(pair[0]) for pair in pairs])
        after = [int(pair[1]) for pair in pairs]
        if not len(chosen) or len(set(chosen)) < len(chosen):
            raise Refused("a round without clients, or with one twice, was asked for")
        if chosen.min() < 0 or chosen.max() >= work.store.clients:
            raise Refused(
                f"this site has {work.store.clients} clients, and another one was asked for"
            )
        if not 0 <= number < work.recipe.rounds:
            raise Refused(f"round {number} is none of the {work.recipe.rounds} of this run")
        if self.limits.maximum_rounds:
            self.limits.check_count("rounds", self._rounds.read().total())
            self._rounds.add(about["run"])
        start, needed = work.shapes.state, work.shapes.needed
        spare = {name: own for name, own in wire.by_name(start).items() if name not in needed}
        with refusing("state"):
            state = wire.from_wire(params, start, spare)
            self._check_clip(work.recipe, state)
        updates, new = work.compute(state, work.recall(chosen, after), chosen, number)
        work.memories.keep(chosen.tolist(), new, number, saved)
        return updates, {"round": number, "traces": work.traces[0]}

    def _finish(self, params: object, about: Facts) -> Answer:
        state = wire.from_wire(params, self._begun().shapes.state)
        folder = self.folder / "models" / self._run
        save_tree(folder / "state.safetensors", state)
        record = {
            "method": self._recipe.method,
            "rounds": int(about["rounds"]),
            "data": to_form(about["data"])._asdict(),
            "encoding": str(about["encoding"]),
            "pacpfl": __version__,
        }
        files.write(folder / "config.toml", self._config.encode())
        files.write_json(folder / "model.json", record)
        return wire.empty(), {"kept": True}

    def _begun(self) -> Work:
        if self._work is None:
            raise Refused("a round or a result was sent before the run had begun")
        return self._work

    def _check_clip(self, recipe: Recipe, state: PyTree) -> None:
        """Check the norm to clip at, which the server may change only where the run lets it adapt."""
        if recipe.clip is None:
            return
        if not recipe.adaptive and float(state.clip) != float(recipe.dtype(recipe.clip)):
            raise Refused(
                f"the server asks for a clip norm of {float(state.clip):g}, and the run has one of "
                f"{recipe.clip:g}"
            )
        self.limits.check_clip(float(state.clip))
