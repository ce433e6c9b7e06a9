"""The job of `fairlog audit`: proves on Spark what a stopped node's data logs, or a backup's, promise, for any size.

    directory   which logs there are, and how the work is divided into ranges                   driver
    reading     each range's batch headers, checksums checked; windows, group journals: rows    executors
    checking    the rules of `fairlog.verify`, over the rows of one log or one group journal    executors
    job         runs it: rows, checks over them; findings are counted, some shown               driver

The rules are those of `fairlog verify`, and stand there. What is different is how they are fed: bytes are read by
range, in parallel, and of the data only a row for each batch goes on, to the task that has the log, in order. Only
findings come to the driver. So what has to be held anywhere is bounded: a range's rows while it is read, what is
known of the transactions of one log, or of one group journal, and whatever Spark spills to its disks.

It reads a node's files: whoever runs it needs Fairlog itself, on the executors as well, and all of them the directory
under the same path. `fairlog verify` checks more (local journals, tables, counters), in one process.
"""
