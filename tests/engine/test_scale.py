"""A hundred thousand clients on disk cost no more memory and no more time per round than a thousand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pacpfl.data.store import open_store, write_store
from pacpfl.types import Samples

FEW, MANY = 1_000, 100_000
SAMPLES, FEATURES, CHOSEN = 8, 32, 4  # the large store has 100 MB: 16 times MEMORY would show it
# Allocated memory: pages of the mapped file are the kernel's, which may take them back.
MEMORY = 24 * 2**20

# One process per store, so that memory is that store's own. It trains whenever it is told to, and
# answers with the seconds per round, so that both can take turns.
WORKER = """
import json, sys, time
from dataclasses import dataclass
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
from toys import StatelessToy, make_store
from pacpfl.data.store import ClientStore, open_store
from pacpfl.engine import simulate

handled = 0
highest = 0

@dataclass(frozen=True)
class Counted(ClientStore):
    def gather(self, chosen, dtype):
        global handled, highest
        data = super().gather(chosen, dtype)
        handled += sum(a.nbytes for a in data)
        highest = max(highest, allocated())
        return data

def allocated():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024

chosen, samples, features = map(int, sys.argv[3:])
small = make_store((samples,) * (chosen + 1), features)
simulate.train(StatelessToy(), small, rounds=20, clients_per_round=chosen)
before = allocated()
opened = open_store(Path(sys.argv[2]))
store = Counted(opened.x, opened.y, opened.offsets, opened.longest)
for _ in sys.stdin:
    handled = 0
    moments = []  # after each call: reading from disk counts, compilation does not
    trained = simulate.train(
        StatelessToy(), store, rounds=20, clients_per_round=chosen,
        progress=lambda now: moments.append(time.monotonic()),
    )
    answer = {"seconds": moments[-1] - moments[0], "handled": handled,
              "memory": max(highest, allocated()) - before, "value": float(trained.state.value.sum())}
    print(json.dumps(answer), flush=True)
"""


def parts(count: int) -> Iterator[Samples]:
    """A client's values tell its number, so that a wrong row would show."""
    block = np.random.default_rng(0).normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    targets = block[:, 0]
    for number in range(count):
        yield Samples(block + np.float32(number / count), targets)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("stores")
    for count in (FEW, MANY):
        write_store(folder / str(count), parts(count), FEATURES)
    return {count: folder / str(count) for count in (FEW, MANY)}


Answers = dict[int, list[dict[str, float]]]


@pytest.fixture(scope="module")
def answers(stores: dict[int, Path]) -> Answers:
    """Both stores train in turn, three times each."""
    sizes = [str(CHOSEN), str(SAMPLES), str(FEATURES)]
    workers = {
        count: subprocess.Popen(
            [sys.executable, "-c", WORKER, str(Path(__file__).parent), str(folder), *sizes],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for count, folder in stores.items()
    }  # fmt: skip
    found: Answers = {count: [] for count in workers}
    try:
        for _ in range(3):
            for count, worker in workers.items():
                assert worker.stdin and worker.stdout
                print("train", file=worker.stdin, flush=True)
                found[count].append(json.loads(worker.stdout.readline()))
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()
    return found


def test_all_clients_are_there(stores: dict[int, Path]) -> None:
    store = open_store(stores[MANY])
    assert store.clients == MANY
    last = store.gather(np.array([MANY - 1]), np.float32)
    (expected,) = (part for number, part in enumerate(parts(MANY)) if number == MANY - 1)
    np.testing.assert_array_equal(last.x[0], expected.x)


def test_nothing_grows_with_the_number_of_clients(answers: Answers) -> None:
    """Neither memory, nor bytes and time per round; and both really trained."""
    memory = {count: each[-1]["memory"] for count, each in answers.items()}
    assert memory[MANY] - memory[FEW] < MEMORY, memory
    handled = {count: {each["handled"] for each in found} for count, found in answers.items()}
    assert handled[FEW] == handled[MANY]
    (total,) = handled[MANY]
    per_client = SAMPLES * (4 * (FEATURES + 1) + 1)
    assert 20 * CHOSEN * per_client <= total <= 21 * (CHOSEN + 2) * per_client
    values = {count: {each["value"] for each in found} for count, found in answers.items()}
    assert np.isfinite([*values[FEW], *values[MANY]]).all()
    assert len(values[FEW]) == len(values[MANY]) == 1, "the same seed gives the same run"
    assert values[FEW] != values[MANY]
    seconds = {count: min(each["seconds"] for each in found) for count, found in answers.items()}
    assert seconds[MANY] < 3 * seconds[FEW] + 0.01, seconds
