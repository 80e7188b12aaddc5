"""What happens at a site: requests in, answers out. No network here.

    hello    a configuration -> what the site's data look like, or why it refuses
    begin    the whole federation's form -> the method, built and compiled
    train    a round's state and who takes part -> their updates
    secure   a step of a secure round, in place of `train` (secure_site.py)
    finish   the final state -> kept at the site, for `pacpfl site personalize`

Every request is checked against the site's limits. The data stay in this object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pacpfl import __version__, files
from pacpfl.data.store import ClientStore, from_clients
from pacpfl.engine.keys import Keys
from pacpfl.engine.rounds import fill, first_client, to_device
from pacpfl.errors import InputError
from pacpfl.methods.base import Method
from pacpfl.methods.transforms import ENCODINGS, compressed, summed
from pacpfl.secagg.certified import Passport
from pacpfl.sites import states, wire
from pacpfl.sites.limits import Limits, note_refusal
from pacpfl.sites.recipe import Recipe
from pacpfl.sites.secure_site import MESSAGE, SecureSite
from pacpfl.sites.secure_terms import size_of, to_rows
from pacpfl.sites.wire import Refused, to_form
from pacpfl.types import Federation

AT_ONCE = 64  # clients in one compiled call, at most
Answer = tuple[dict[str, np.ndarray], dict[str, Any]]


@dataclass
class Work:
    """A run that has begun at this site."""

    method: Method
    first: int  # number of the site's first client
    state: Any  # the server's before the first round: a template, and what is not sent
    client_state: Any  # of a client before its first round
    needed: frozenset[str]
    initial: Any  # compiled: the state of a client before its first round
    update: Any  # compiled: updates and new states of many clients
    traces: list[int]


class Site:
    """One site in one run: it lives as long as its process."""

    def __init__(
        self,
        name: str,
        folder: Path,
        limits: Limits,
        open_run: Callable[[str, str], tuple[Recipe, Federation]],
        passport: Passport | None = None,
    ) -> None:
        self.name, self.folder, self.limits = name, folder, limits
        self._open_run, self._passport = open_run, passport
        self._secure: SecureSite | None = None  # of a run that asks for it: then nothing else goes
        self._recipe: Recipe | None = None
        self._federation: Federation | None = None
        self._store: ClientStore | None = None
        self._config = ""
        self._run = ""
        self._work: Work | None = None

    def answer(self, params: Any, text: Any) -> tuple[dict[str, np.ndarray], str]:
        """Answer a request; a refusal is an answer, too, and is written down here."""
        asked: dict[str, Any] = {}
        try:
            about = wire.from_text(text)
            known = ("task", "run", "round", "step", "method")
            asked = {k: about[k] for k in known if k in about}
            arrays, said = self._answer(params, about)
        except (Refused, InputError) as error:
            note_refusal(self.folder, str(error), asked)
            return wire.empty(), wire.to_text({"refused": str(error)[:500], "site": self.name})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"the request makes no sense ({type(error).__name__}: {error})"
            note_refusal(self.folder, reason, asked)
            return wire.empty(), wire.to_text({"refused": reason[:500], "site": self.name})
        return arrays, wire.to_text({**said, "site": self.name, "run": self._run})

    def _answer(self, params: Any, about: dict[str, Any]) -> Answer:
        task = about.get("task")
        if task == "hello":
            return self._hello(about)
        if about["run"] != self._run:
            raise Refused("the request belongs to another run than the one that was opened")
        if task == "begin":
            return self._begin(about)
        if task == "train":
            if self._secure is not None:
                raise Refused("this run's updates leave the site in secure rounds only")
            return self._train(params, about)
        if task == "secure":
            return self._step(params, about)
        if task == "finish":
            return self._finish(params, about)
        raise Refused(f"there is no task {str(task)[:40]!r}")

    def _hello(self, about: dict[str, Any]) -> Answer:
        wire.same_major(__version__, about["version"])
        run = about["run"]
        if not isinstance(run, str) or not re.fullmatch(r"[0-9a-f]{8,64}", run):
            raise Refused("a run is named by 8 to 64 digits 0 to 9, a to f")
        config, name = str(about["config"]), str(about["method"])
        recipe, federation = self._open_run(config, name)
        samples = [len(client.train) for client in federation.existing]
        secure = about.get("secure", False) is True
        self.limits.check_request(recipe, samples, secure)
        self.limits.check_rounds(self._answered() if self.limits.maximum_rounds else 0)
        guarded = self._make_secure(run) if secure else None
        self._recipe, self._federation, self._config, self._run = recipe, federation, config, run
        self._secure = guarded
        self._store = from_clients(federation.existing, roomy=federation.classes is not None)
        self._work = None
        form = federation.form
        if not self.limits.share_sizes:
            form = form._replace(sizes=None)
        said = {"version": __version__, "data": form._asdict()}
        if guarded is not None:
            said["introduction"] = guarded.introduction
        return wire.empty(), said

    def _make_secure(self, run: str) -> SecureSite:
        if self._passport is None:
            raise Refused("this site has no certificate with which to vouch for its keys")
        return SecureSite(self.name, self.folder, self._passport, run)

    def _begin(self, about: dict[str, Any]) -> Answer:
        recipe, store = self._recipe, self._store
        assert recipe is not None and store is not None
        whole = to_form(about["data"])
        encoding = about["encoding"]
        if encoding not in ENCODINGS:
            raise Refused(f"there is no encoding {str(encoding)[:20]!r}")
        built = recipe.build(whole)
        method = compressed(built, encoding) if self._secure is None else summed(built)
        first = int(about["seats"][self.name])
        keys = Keys.of(recipe.seed)
        example = first_client(store, recipe.dtype)
        self.limits.check_model(wire.count(jax.eval_shape(method.init, keys.start(), example)))
        state = jax.jit(method.init)(keys.start(), example)
        client_key = keys.start_of(first)
        client_state = jax.eval_shape(method.init_client, state, example, client_key)
        needed = wire.needed(method, state, client_state, example, client_key)
        if self._secure is not None:
            form = jax.eval_shape(method.client_update, state, client_state, example, client_key)[0]
            proposal, shown = about["secure"], about["introductions"]
            self._secure.begin(proposal, shown, method, size_of(form), whole.clients)
        traces = [0]

        def one(state: Any, own: Any, data: Any, number: Any, client: Any) -> Any:
            traces[0] += 1
            return method.client_update(state, own, data, keys.update(number, client))

        def initial(data: Any, client: Any) -> Any:
            return method.init_client(state, data, keys.start_of(client))

        update = jax.jit(jax.vmap(one, in_axes=(None, 0, 0, None, 0)))
        self._work = Work(
            method, first, state, client_state, needed, jax.jit(initial), update, traces
        )
        everyone = np.arange(min(store.clients, AT_ONCE))
        never = [states.NEVER] * len(everyone)
        self._compute(state, self._recall(everyone, never), everyone, 0)  # compiles
        return wire.empty(), {"ready": True}

    def _train(self, params: Any, about: dict[str, Any]) -> Answer:
        updates, said = self._updates(params, about)
        return wire.to_wire(updates), said

    def _step(self, params: Any, about: dict[str, Any]) -> Answer:
        """Take one step of a secure round; the first one computes the updates, which stay here."""
        if self._secure is None:
            raise Refused("a secure round was asked for in a run without them")
        said = {"round": about["round"], "step": about["step"]}
        if about["step"] == "advertise":
            updates, more = self._updates(params, about)
            assert self._store is not None
            if len(jax.tree.leaves(updates)[0]) != self._store.clients:
                raise Refused("a secure round takes all clients of a site")
            message = self._secure.advertise(about, to_rows(updates))
            said |= more
        else:
            message = self._secure.step(params, about)
        return wire.from_messages({MESSAGE: message}), said

    def _updates(self, params: Any, about: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Compute the updates of the clients that take part in a round."""
        work, store, recipe = self._work, self._store, self._recipe
        if work is None or store is None or recipe is None:
            raise Refused("a round was asked for before the run had begun")
        number, saved = int(about["round"]), int(about["saved"])
        pairs = about["take"][self.name]
        chosen = np.array([int(pair[0]) for pair in pairs])
        after = [int(pair[1]) for pair in pairs]
        if not len(chosen) or len(set(chosen)) < len(chosen):
            raise Refused("a round without clients, or with one twice, was asked for")
        if chosen.min() < 0 or chosen.max() >= store.clients:
            raise Refused(f"this site has {store.clients} clients, and another one was asked for")
        if not 0 <= number < recipe.rounds:
            raise Refused(f"round {number} is none of the {recipe.rounds} of this run")
        self._count_round()
        have = wire.by_name(work.state)
        spare = {name: value for name, value in have.items() if name not in work.needed}
        state = wire.from_wire(params, work.state, spare)
        self._check_clip(state)
        own = self._recall(chosen, after)
        updates, new = self._compute(state, own, chosen, number)
        if not states.is_empty(new):
            for row, client in enumerate(chosen):
                one = jax.tree.map(lambda a, row=row: a[row], new)
                states.keep(self._states, int(client), number, one)
                states.forget(self._states, int(client), saved)
        return updates, {"round": number, "traces": work.traces[0]}

    def _finish(self, params: Any, about: dict[str, Any]) -> Answer:
        work, recipe = self._work, self._recipe
        if work is None or recipe is None:
            raise Refused("a result was sent before the run had begun")
        state = wire.from_wire(params, work.state)
        folder = self.folder / "models" / self._run
        states.save_tree(folder / "state.safetensors", state)
        record = {
            "method": recipe.method,
            "rounds": int(about["rounds"]),
            "data": to_form(about["data"])._asdict(),
            "encoding": str(about["encoding"]),
            "pacpfl": __version__,
        }
        files.write(folder / "config.toml", self._config.encode())
        files.write_json(folder / "model.json", record)
        return wire.empty(), {"kept": True}

    def _compute(self, state: Any, own: Any, chosen: np.ndarray, number: int) -> tuple[Any, Any]:
        """Compute updates and new states of the chosen clients, in calls of few different sizes."""
        work, store, recipe = self._work, self._store, self._recipe
        assert work is not None and store is not None and recipe is not None
        parts = []
        for start in range(0, len(chosen), AT_ONCE):
            some = chosen[start : start + AT_ONCE]
            slots = min(AT_ONCE, store.clients, 1 << (len(some) - 1).bit_length())
            filled = fill(some, max(slots, len(some)))
            rows = np.minimum(start + np.arange(len(filled)), len(chosen) - 1)
            data = to_device(store.gather(filled, recipe.dtype))
            mine = to_device(jax.tree.map(lambda a, rows=rows: a[rows], own))
            numbers = to_device((work.first + filled).astype(np.int32))
            result = work.update(state, mine, data, jnp.int32(number), numbers)
            parts.append(_rows(result, len(some)))
        return jax.tree.map(lambda *a: np.concatenate(a), *parts)

    def _recall(self, chosen: np.ndarray, after: list[int]) -> Any:
        """Return the states that the server counts on: each after the client's last round that counted."""
        work = self._work
        assert work is not None
        if not jax.tree.leaves(work.client_state):
            return work.client_state
        rows = []
        for client, number in zip(chosen, after, strict=True):
            if number == states.NEVER or states.is_empty(work.client_state):
                rows.append(self._start(int(client)))
            else:
                rows.append(states.recall(self._states, int(client), number, work.client_state))
        return jax.tree.map(lambda *each: np.stack(each), *rows)

    def _start(self, client: int) -> Any:
        """Return a client's state before its first round, as the simulator makes it."""
        work, store, recipe = self._work, self._store, self._recipe
        assert work is not None and store is not None and recipe is not None
        data = jax.tree.map(lambda a: a[0], store.gather(np.array([client]), recipe.dtype))
        return jax.tree.map(np.asarray, work.initial(to_device(data), work.first + client))

    def _check_clip(self, state: Any) -> None:
        """Check the norm to clip at, which the server may change only where the run lets it adapt."""
        recipe = self._recipe
        if recipe is None or recipe.clip is None:
            return
        if not recipe.adaptive and float(state.clip) != float(recipe.dtype(recipe.clip)):
            raise Refused(
                f"the server asks for a clip norm of {float(state.clip):g}, and the run has one of "
                f"{recipe.clip:g}"
            )
        self.limits.check_clip(float(state.clip))

    @property
    def _states(self) -> Path:
        return self.folder / "states" / self._run

    def _answered(self) -> int:
        path = self.folder / "rounds.json"
        return sum(json.loads(path.read_text()).values()) if path.exists() else 0

    def _count_round(self) -> None:
        """Count a round before it is answered: who is killed in between has counted it."""
        if not self.limits.maximum_rounds:
            return
        path = self.folder / "rounds.json"
        counts = json.loads(path.read_text()) if path.exists() else {}
        self.limits.check_rounds(sum(counts.values()))
        counts[self._run] = counts.get(self._run, 0) + 1
        files.write_json(path, counts)


def _rows(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda a: np.asarray(a)[:count], tree)
