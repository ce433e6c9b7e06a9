"""Does a stopped node's directory keep what docs/invariants.md promises? The rules, one module per family.

    directories     topics, data logs, journals and tables belong together; nobody's are none
    journals        what each local journal says, and that the data log's mark lies in it      invariants 4, 11
    batches         every stored batch: key, header, checksum, density, no control batch      1, 2
    counters        the log record's sums, and the time index
    producers       sequences never go back; the producers' windows agree with the batches     4, 9
    placements      every transactional batch is where a transaction was placed, and whole     1, 3, 5
    markers         marker mode: markers, and the lists of open and aborted transactions       1, 5, 9
    staged          what stands beyond a log's end is what a copy has staged there             2, 4
    copies          the data log holds what the journal still holds, once and unchanged        4
    committed_offsets   the table of committed offsets can be read
    persisted_groups    so can that of the members of consumer groups
    transactions    group journals against all logs: once, whole, in commit order              5, 6, 7
    sink_commits    the batches of sinks: once, in order, all lanes as one                   3, 5, 7
    rules           what is asked of which log: here stand the documented exceptions

The checkers are pure: they are fed what was read, and yield violations. Two shells read, and never write: for
`fairlog verify` `verification`, a directory in one process; for `fairlog audit` tasks of Spark (`fairlog.audit`), which
feed those checkers that need no local journal. `group_journals` reads for both.
"""
