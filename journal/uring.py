"""io_uring, as far as flushes need it: fdatasyncs that the kernel carries out while this process goes on.

    fdatasync(fd, number) ──▶ the kernel ──▶ `eventfd` becomes readable ──▶ finished(): [(number, result)]

One system call begins an fdatasync, and neither a thread of ours nor the interpreter's lock has a part in it. The
kernel runs it in a worker thread of its own for this process. Bound by ctypes to the system calls themselves: there
are three, and two rings of fixed layout (linux/io_uring.h), and no library to depend on.

Who owns what: we write the tail of the submission ring and the head of the completion ring, the kernel the other two.
Our entries are read within `io_uring_enter`, in this very thread. Completions are written by another one, maybe while
we look: that whoever sees the tail sees what lies before it takes a processor that reads in the order of the program,
since Python has no barrier to offer. x86 does; others may not, and there is no ring for them.

`open_ring` answers None there, and where the kernel or a sandbox refuses (containers do, by default). For one thread.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import select
import struct

ENTRIES = 64
"""Fdatasyncs that may be under way at a time; the kernel keeps twice as many completions, so none is dropped."""

_PROBE_MS = 1000
"""A ring that does not carry out the first fdatasync within it is not used."""

_SETUP, _ENTER, _REGISTER = 425, 426, 427
"""The system calls' numbers, the same on every architecture that Linux calls 64-bit."""

_ORDERED_MACHINES = frozenset({"x86_64", "AMD64"})
"""Those whose processors read in the order of the program."""

_REGISTER_EVENTFD = 4
_FEATURE_SINGLE_MMAP = 1
_OFFSET_OF_ENTRIES = 0x10000000

_FSYNC, _DATASYNC = 3, 1
_ENTRY = struct.Struct("=BBHiQQIIQ24x")
"""opcode, flags, ioprio, fd, offset, address, length, operation's flags, user data; the rest is zero."""
_COMPLETION = struct.Struct("=Qi4x")


_PARAMETERS_WORDS = 30
"""struct io_uring_params: sq_entries, cq_entries, flags, cpu, idle, features, wq_fd and 3 reserved; then 10 for either
ring: head, tail, ring_mask, ring_entries, and for submissions flags, dropped, array, for completions overflow, cqes."""

# PyDLL keeps the interpreter's lock: the calls return at once, and handing it over is what is to be saved.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Ring:
    """A submission and a completion ring. Made by `open_ring`."""

    def __init__(self) -> None:
        parameters = (ctypes.c_uint32 * _PARAMETERS_WORDS)()
        self.eventfd = -1
        """Readable when something has finished; to be read before `finished` is asked."""
        self._fd = _call(_SETUP, ENTRIES, ctypes.byref(parameters))
        words: list[int] = list(parameters)
        sq_entries, cq_entries, _, _, _, features, *_ = words
        sq, cq = words[10:20], words[20:30]
        if not features & _FEATURE_SINGLE_MMAP:
            self.close()
            raise OSError(errno.ENOSYS, "an io_uring of before Linux 5.4")
        ring_bytes = max(sq[6] + 4 * sq_entries, cq[5] + _COMPLETION.size * cq_entries)
        try:
            self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            _call(_REGISTER, self._fd, _REGISTER_EVENTFD, ctypes.byref(ctypes.c_int(self.eventfd)), 1)
            self._ring = mmap.mmap(self._fd, ring_bytes)
            self._entries = mmap.mmap(self._fd, _ENTRY.size * sq_entries, offset=_OFFSET_OF_ENTRIES)
        except OSError:
            self.close()
            raise
        self._words = memoryview(self._ring).cast("I")
        self._sq_tail, self._sq_mask = sq[1] // 4, self._words[sq[2] // 4]
        self._cq_head, self._cq_tail, self._cq_mask = cq[0] // 4, cq[1] // 4, self._words[cq[2] // 4]
        self._completions = cq[5]
        array = sq[6] // 4
        for index in range(sq_entries):
            self._words[array + index] = index
        self._under_way = 0

    def fdatasync(self, fd: int, number: int) -> bool:
        """Begin an fdatasync, to be told of by `number`; False, and nothing is begun, if there is no room for it now.

        The file must stay open until then.
        """
        if self._under_way == ENTRIES:
            return False
        tail = self._words[self._sq_tail]
        _ENTRY.pack_into(
            self._entries, _ENTRY.size * (tail & self._sq_mask), _FSYNC, 0, 0, fd, 0, 0, 0, _DATASYNC, number
        )
        self._words[self._sq_tail] = (tail + 1) & 0xFFFF_FFFF
        try:
            taken = _call(_ENTER, self._fd, 1, 0, 0, None, 0)
        except OSError:
            taken = 0
        if not taken:
            self._words[self._sq_tail] = tail  # the kernel looks at it within the call only
            return False
        self._under_way += 1
        return True

    def finished(self) -> list[tuple[int, OSError | None]]:
        """The fdatasyncs that have finished since the last call, by their numbers, each with what went wrong."""
        head, tail = self._words[self._cq_head], self._words[self._cq_tail]
        outcomes: list[tuple[int, OSError | None]] = []
        while head != tail:
            offset = self._completions + _COMPLETION.size * (head & self._cq_mask)
            number, result = _COMPLETION.unpack_from(self._ring, offset)
            outcomes.append((number, None if result == 0 else OSError(-result, os.strerror(-result))))
            head = (head + 1) & 0xFFFF_FFFF
        self._words[self._cq_head] = head
        self._under_way -= len(outcomes)
        return outcomes

    def close(self) -> None:
        """Nothing may be under way."""
        for fd in (self._fd, self.eventfd):
            if fd >= 0:
                os.close(fd)
        self._fd = self.eventfd = -1


def open_ring() -> Ring | None:
    """A ring that has been seen to work; None where there is none to be had."""
    if platform.machine() not in _ORDERED_MACHINES:
        return None
    try:
        ring = Ring()
    except OSError:
        return None
    try:
        probe = os.memfd_create("io_uring probe", os.MFD_CLOEXEC)
        try:
            if ring.fdatasync(probe, 1) and _is_readable(ring.eventfd):
                os.eventfd_read(ring.eventfd)
                if ring.finished() == [(1, None)]:
                    return ring
        finally:
            os.close(probe)
    except OSError:
        pass  # as good as refused
    ring.close()
    return None


def _is_readable(eventfd: int) -> bool:
    """Soon, that is. The event loop's thread waits, once at the start, for some ten microseconds."""
    poll = select.poll()
    poll.register(eventfd, select.POLLIN)
    return bool(poll.poll(_PROBE_MS))


def _call(number: int, *arguments: object) -> int:
    """The system call. Raises OSError."""
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
