"""Worker threads that run when the seed says so.

The node hands blocking work to threads: with `trio.to_thread.run_sync`, and through the flusher. Here each piece of
work runs in a thread as well, but the threads and the event loop never run at the same time: the loop gives a thread
the word, and waits until that has ended or *pauses*. It pauses at a system call, if the seed says so, and goes on
after some virtual time, in which the loop, and other threads, have gone on. So every interleaving at system calls
can happen, and the same seed makes the same one again.

`trio.to_thread.run_sync` is replaced for the run; the flusher is the real one, without its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import trio

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

    def result(self) -> Any:
        self._work = None
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._result

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
            except BaseException as error:  # noqa: BLE001 (handed to the loop)
                self._error = error
            self.ended = True
            self._back.release()


class Workers:
    """All threads of one run."""

    def __init__(self, world: World, *, pause_probability: float) -> None:
        self._world = world
        self._rng = world.stream("workers")
        self._pause_probability = pause_probability
        self._idle: list[_Thread] = []

    def maybe_pause(self) -> None:
        """At a system call: let others go first, if this is a thread, and the seed says so."""
        thread = getattr(_Thread.here, "thread", None)
        if thread is not None and not self._world.crashed and self._rng.random() < self._pause_probability:
            thread.pause()

    def _delay(self) -> float:
        return self._rng.choice((0.00001, 0.0001, 0.0001, 0.0003, 0.002)) * self._rng.random()

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work; nobody can cancel it. Raises what it raises."""
        with trio.CancelScope(shield=True):
            await trio.sleep(self._delay())
            if not self._pause_probability:
                result = work()
            else:
                thread = self._idle.pop() if self._idle else _Thread()
                thread.begin(work)
                while not thread.step():
                    await trio.sleep(self._delay())
                self._idle.append(thread)
                result = thread.result()
            await trio.sleep(self._delay())
            return result
        raise AssertionError("nobody cancels this scope")

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
            return await self.run(lambda: work(*args))
        async with limiter:
            return await self.run(lambda: work(*args))

    @contextmanager
    def installed(self) -> Iterator[None]:
        real = trio.to_thread.run_sync
        trio.to_thread.run_sync = self.run_sync  # type: ignore[assignment]
        try:
            yield
        finally:
            trio.to_thread.run_sync = real
            for thread in self._idle:
                thread.stop()


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
        self._machine.start_soon(self._carry_out, work, done)

    async def _carry_out(self, work: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        try:
            outcome: T | OSError = await self._workers.run(work)
        except OSError as error:
            outcome = error
        done(outcome)


class SimulatedRing:
    """In place of `RingSyncs`: an fdatasync that begins at once, and is told of when the seed says so."""

    def __init__(self, machine: trio.Nursery, calls: SystemCalls) -> None:
        self._machine = machine
        self._calls = calls

    def start(self, file: OpenFile, done: Callable[[OSError | None], None]) -> bool:
        begun = self._calls.begin_fdatasync(file.fd)
        self._machine.start_soon(self._finish, file, begun, done)
        return True

    async def _finish(self, file: OpenFile, begun: int, done: Callable[[OSError | None], None]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(self._calls.sync_delay())
        outcome: OSError | None = None
        try:
            self._calls.end_fdatasync(file.fd, begun)
        except OSError as error:
            outcome = error
        done(outcome)
