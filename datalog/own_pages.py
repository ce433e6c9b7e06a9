"""Read transactions of LMDB in pages of their own, outside the heap.

A transaction has room for all databases that are allowed: 65,536 × 49 bytes. It is made for each reading, zeroed by
`calloc`, and freed; the binding keeps one for reuse. In pages of its own that costs a few pages, those that are used:
the system gives zeroed ones, and has them back. In the heap all of it is zeroed, and resident. (Where a hole of the
heap is large enough, it is still used.)

glibc gives pages of its own to a block from its threshold on. The threshold begins at 128 KiB, and rises to the size
of each such block that is freed (`mallopt(3)`, M_MMAP_THRESHOLD), so that the first transaction that ends would be the
last one outside. Here it is set, and stays. Requests and records of a megabyte remain in the heap, where they are
faster: pages of their own would be zeroed for each.

Other C libraries give pages to large blocks from a fixed size on, and nothing is set.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_THRESHOLD_BYTES = 3 << 20
"""Below the 3.2 MB of a transaction."""


def give_transactions_own_pages() -> None:
    """For this process, from now on. It may be called again."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
    mallopt(_M_TRIM_THRESHOLD, 2 * _THRESHOLD_BYTES)  # as glibc sets it beside a threshold that has risen
