"""Worker threads that run when the seed says so.

The node hands blocking work to threads: with `trio.to_thread.run_sync`, and through the flusher. Here each piece of
work runs in a thread as well, but the threads and the event loop never run at the same time: the loop gives a thread
the word, and waits until that has ended or *pauses*. It pauses at a system call, if the seed says so, and goes on
after some virtual time, in which the loop, and other threads, have gone on. So every interleaving at system calls
can happen, and the same seed makes the same one again.

`trio.to_thread.run_sync` is replaced for the run; the flusher is the real one, without its threads.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from unittest import mock

import trio

import journal.preallocation
from journal.flush import Flusher, TailWatcher
from journal.segment_file import OpenFile
from tests.simulation.system_calls import SystemCalls
from tests.simulation.world import World

T = TypeVar("T")


class _Thread:
    """A thread that runs only while `step` is being called."""

    here = threading.local()

    def __init__(self) -> None:
        self._work: Callable[[], Any] | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = True
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], Any]) -> None:
        self._work, self.ended, self._error = work, False, None

    def step(self) -> bool:
        """Let it run until it ends (True) or pauses."""
        self._go.release()
        self._back.acquire()
        return self.ended

    def take_outcome(self) -> Callable[[], Any]:
        self._work = None
        (result, self._result), (error, self._error) = (self._result, None), (self._error, None)
        return (lambda: result) if error is None else _raising(error)

    def pause(self) -> None:
        self._back.release()
        self._go.acquire()

    def stop(self) -> None:
        self._work = None
        self._go.release()

    def _run(self) -> None:
        self.here.thread = self
        while True:
            self._go.acquire()
            if self._work is None:
                return
            try:
                self._result = self._work()
            except BaseException as error:  # noqa: BLE001, ASYNC103 (handed to the loop)
                self._error = error
            self.ended = True
            self._back.release()


class _Job:
    """One piece of work, under way in a thread, or done in one go where threads never pause."""

    def __init__(self, work: Callable[[], Any], idle: list[_Thread] | None) -> None:
        self._work = work
        self._idle = idle
        self._thread: _Thread | None = None
        self._outcome: Callable[[], Any] | None = None

    @property
    def ended(self) -> bool:
        return self._outcome is not None

    def advance(self) -> None:
        """Begin, or go on, up to the next pause."""
        if self._idle is None:
            self._outcome = self._done_at_once()
            return
        if self._thread is None:
            self._thread = self._idle.pop() if self._idle else _Thread()
            self._thread.begin(self._work)
        if self._thread.step():
            self._outcome = self._thread.take_outcome()
            self._idle.append(self._thread)

    def result(self) -> Any:
        assert self._outcome is not None
        return self._outcome()

    def _done_at_once(self) -> Callable[[], Any]:
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001, ASYNC103 (raised where it is waited for)
            return _raising(error)  # noqa: ASYNC104
        return lambda: result


def _raising(error: BaseException) -> Callable[[], Any]:
    def raise_it() -> Any:
        raise error

    return raise_it


class Workers:
    """All threads of one run."""

    def __init__(self, world: World, *, pause_probability: float) -> None:
        self._world = world
        self._rng = world.stream("workers")
        self._pause_probability = pause_probability
        self._idle: list[_Thread] = []
        self._jobs: dict[_Job, None] = {}

    def maybe_pause(self) -> None:
        """At a system call: let others go first, if this is a thread, and the seed says so."""
        thread = getattr(_Thread.here, "thread", None)
        if thread is not None and not self._world.crashed and self._rng.random() < self._pause_probability:
            thread.pause()

    def _delay(self) -> float:
        return self._rng.choice((0.00001, 0.0001, 0.0001, 0.0003, 0.002)) * self._rng.random()

    def take(self, work: Callable[[], Any]) -> _Job:
        """Take in blocking work, for `finish` to be called with."""
        work = partial(contextvars.copy_context().run, work)  # whose work it is, its failpoints ask
        job = _Job(work, self._idle if self._pause_probability else None)
        self._jobs[job] = None
        return job

    async def finish(self, job: _Job) -> Any:
        """Run the work to its end; nobody can cancel that. Raises what it raises."""
        with trio.CancelScope(shield=True):
            await trio.sleep(self._delay())
            while not job.ended:
                job.advance()
                await trio.sleep(self._delay())
        del self._jobs[job]
        return job.result()

    def drive(self, event: threading.Event) -> None:
        """The event loop waits for a thread: let the threads run until one has set the event."""
        while not event.is_set():
            running = [job for job in self._jobs if not job.ended]
            assert running, "the event loop waits for what nobody does"
            self._rng.choice(running).advance()

    async def run_sync(
        self,
        work: Callable[..., T],
        *args: object,
        thread_name: str | None = None,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """In place of `trio.to_thread.run_sync`."""
        assert not abandon_on_cancel
        await trio.lowlevel.checkpoint_if_cancelled()
        if limiter is None:
            return await self.finish(self.take(lambda: work(*args)))
        async with limiter:
            return await self.finish(self.take(lambda: work(*args)))

    @contextmanager
    def installed(self) -> Iterator[None]:
        with (
            mock.patch.object(trio.to_thread, "run_sync", self.run_sync),
            mock.patch.object(journal.preallocation, "ThreadEvent", partial(_Event, self)),
        ):
            yield
        for thread in self._idle:
            thread.stop()


class _Event(threading.Event):
    """What the event loop waits for in the one place where it waits for a thread (`journal.preallocation`)."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is None
        self._workers.drive(self)
        return True


class CooperativeLock:
    """In place of a lock that a thread may hold while it pauses: others pause until it is free."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            thread = getattr(_Thread.here, "thread", None)
            assert thread is not None, "the event loop waits for a lock"
            thread.pause()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class SimulatedFlusher(Flusher):
    """The flusher, with these workers for its threads. `machine` is the nursery of what a crash does not unwind."""

    def __init__(
        self, workers: Workers, machine: trio.Nursery, calls: SystemCalls, *, ring: bool, watcher: TailWatcher
    ) -> None:
        syncs: Any = SimulatedRing(machine, calls) if ring else None
        super().__init__(threads=0, sync=calls.fdatasync, ring=syncs, watcher=watcher)
        self._workers = workers
        self._machine = machine

    def submit(self, work: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        self._machine.start_soon(self._carry_out, self._workers.take(work), done)

    async def _carry_out(self, job: _Job, done: Callable[[T | OSError], None]) -> None:
        try:
            outcome: T | OSError = await self._workers.finish(job)
        except OSError as error:
            outcome = error
        done(outcome)


class SimulatedRing:
    """In place of `RingSyncs`: an fdatasync that begins at once, and is told of when the seed says so."""

    def __init__(self, machine: trio.Nursery, calls: SystemCalls) -> None:
        self._machine = machine
        self._calls = calls

    def start(self, file: OpenFile, done: Callable[[OSError | None], None]) -> bool:
        self._machine.start_soon(self._finish, file, self._begin(file), done)
        return True

    def _begin(self, file: OpenFile) -> int | OSError:
        try:
            return self._calls.begin_fdatasync(file.fd)
        except OSError as error:
            return error

    async def _finish(self, file: OpenFile, begun: int | OSError, done: Callable[[OSError | None], None]) -> None:
        outcome = begun if isinstance(begun, OSError) else None
        with trio.CancelScope(shield=True):
            await trio.sleep(self._calls.sync_delay())
        if not isinstance(begun, OSError):
            try:
                self._calls.end_fdatasync(file.fd, begun)
            except OSError as error:
                outcome = error
        done(outcome)
