"""Many independent jobs, in this process or in several, that can be stopped at any moment.

Each worker is a process of its own with its own JAX and its share of the cores. One that dies takes
only its job with it, and another takes its place.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np

from pacpfl.engine import runtime
from pacpfl.errors import InputError

CHECK_SECONDS = 0.2  # how often somebody who wants to stop is heard
Job = Callable[[Any, Callable[[], bool]], Any]  # (what to do, whether to stop) -> result


class Ended(NamedTuple):
    """A job that is over: it has a result, or failed for a reason, or was stopped (neither)."""

    task: Any
    result: Any = None
    failure: str | None = None


def work(
    job: Job,
    tasks: Iterator[Any],
    workers: int,
    stop: Callable[[], bool] = lambda: False,
    seconds: float | None = None,
    precision: str = "float32",
) -> Iterator[Ended]:
    """Do the tasks, `workers` at a time, and yield each when it has ended; the order may change.

    A task is only asked for when somebody is free to do it. After `seconds`, or when `stop` says so,
    what is under way is given up and comes back as stopped. `job` must be a function of a module, and
    tasks and results plain values that are not None, because they travel between processes. One
    worker is this process itself.
    """
    end = float("inf") if seconds is None else time.monotonic() + seconds

    def over() -> bool:
        return stop() or time.monotonic() >= end

    if workers == 1:
        return _alone(job, tasks, over)
    return _together(job, tasks, workers, over, precision)


def attempt(job: Job, task: Any, stop: Callable[[], bool]) -> Ended:
    """Do a task; whatever goes wrong is told, and the other jobs go on."""
    try:
        return Ended(task, job(task, stop))
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        return Ended(task, failure=f"{kind}{error}")


def _alone(job: Job, tasks: Iterator[Any], over: Callable[[], bool]) -> Iterator[Ended]:
    while not over() and (task := next(tasks, None)) is not None:
        ended = attempt(job, task, over)
        yield Ended(task) if ended.result is None and over() else ended


def _together(
    job: Job, tasks: Iterator[Any], workers: int, over: Callable[[], bool], precision: str
) -> Iterator[Ended]:
    # Several processes on one accelerator: none may take all of its memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    unused, idle = shares(workers), list[_Worker]()
    busy: dict[Any, _Worker] = {}  # by line
    try:
        while True:
            while (unused or idle) and not over() and (task := next(tasks, None)) is not None:
                worker = idle.pop() if idle else _Worker(job, unused.pop(), precision)
                worker.give(task)
                busy[worker.line] = worker
            if not busy:
                return
            for line in wait(list(busy), CHECK_SECONDS):
                worker = busy.pop(line)
                try:
                    ended = worker.line.recv()
                    idle.append(worker)
                except EOFError:
                    ended = Ended(worker.task, failure="its process ended unexpectedly")
                    unused.append(worker.cores)
                    worker.end()
                yield ended
            if over():
                for worker in busy.values():
                    yield Ended(worker.task)
                return
    finally:
        for worker in (*idle, *busy.values()):
            worker.end()


def shares(workers: int) -> list[list[int]]:
    """Share out the cores: as equal as it goes, and one where there are more workers."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < workers:
        return [cores[i % len(cores) :][:1] if cores else [] for i in range(workers)]
    return [part.tolist() for part in np.array_split(cores, workers)]


class _Worker:
    """A process, the line to it, and the task it is at."""

    def __init__(self, job: Job, cores: list[int], precision: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.cores, self.task = cores, None
        self.line, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(job, theirs, cores, precision), daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, task: Any) -> None:
        self.task = task
        with suppress(OSError):  # of one that is dead we hear when we listen
            self.line.send(task)

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.line.close()


def _serve(job: Job, line: Connection, cores: list[int], precision: str) -> None:
    """Do one task after the other, until nobody is on the line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started the workers also ends them
    if cores:
        os.sched_setaffinity(0, cores)  # JAX takes as many devices and threads as it may use
    runtime.configure(precision)
    with suppress(EOFError, OSError):
        while True:
            line.send(attempt(job, line.recv(), lambda: False))
