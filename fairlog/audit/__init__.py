"""The job of `fairlog audit`: proves on Spark what a stopped node's data logs, or a backup's, promise, for any size.

    directory   which logs there are, and how the work is divided into ranges               driver
    reading     each range's batch headers and checksums, and producers' windows, as rows   executors
    telling     what each group journal tells of transactions, as rows                      executors
    checks      what must hold of the rows, as SQL: each check yields findings              executors
    job         runs it: rows once, all checks over them; findings are counted, some shown  driver

Of the data only one row for each batch leaves the place where it is read, and only findings come to the driver. So what
has to be held anywhere is bounded: a range's rows while it is read, and whatever Spark spills to its disks.

It reads a node's files: whoever runs it needs Fairlog itself, on the executors as well, and all of them the directory
under the same path. `fairlog verify` checks more (local journals, tables,
counters), in one process.
"""
