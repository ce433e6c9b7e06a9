"""What must hold of the rows: the audit's rules, in SQL.

A check looks at the rows of its `source`, which has the column `log`, once, whatever number of rules it has; a rule
says of each row when it is a finding, at which offset, and what is wrong. Checks ask of a log what `fairlog.verify`
asks; the exceptions, holes that compaction has left and markers, are columns of `logs`.

No check puts a whole log's batches into one place. Where order matters, rows are put in order within a range (`part`),
and the ranges' first and last rows beside one another. Where batches are looked for between two offsets, both sides are
cut into buckets of `BUCKET_OFFSETS` and joined by these; a pair is taken in the first bucket that both have. Only in
marker mode a producer's transactional batches of one log are laid beside one another.

Words, beside those of `reading`:

    place      where a transaction is in a topic's log, by COMMITTED or a producer's window
    known      the first place of a producer that is known in a log: what it has behind that is known as well
    whole_from from here on nothing was deleted or compacted
"""

from __future__ import annotations

from dataclasses import dataclass

BUCKET_OFFSETS = 256
"""A pair of neighbours shares one bucket, mostly, with few others."""

MISSING, MISSING_INVARIANT = "missing", 5
"""The kind of findings of what is not there at all: no row tells of it, so the driver looks (`directory`)."""

_SEQUENCES = 1 << 31


@dataclass(frozen=True, slots=True)
class View:
    """Rows that several checks look at."""

    name: str
    sql: str
    kept: bool = False
    """It is worth being computed once only."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is a finding in a source's row: SQL expressions."""

    kind: str
    invariant: int | None
    """Of docs/invariants.md; None for what a page of docs/formats says."""
    when: str
    offset: str
    what: str


@dataclass(frozen=True, slots=True)
class Check:
    """A query, and the rules for its rows."""

    source: str
    rules: tuple[Rule, ...]

    @property
    def sql(self) -> str:
        """A query for the findings: kind, invariant, log, offset, what."""
        found = ", ".join(
            f"if({rule.when}, named_struct('kind', '{rule.kind}', 'invariant', "
            f"{'cast(null as int)' if rule.invariant is None else rule.invariant}, "
            f"'offset', cast({rule.offset} as bigint), 'what', {rule.what}), null)"
            for rule in self.rules
        )
        return (
            "select found.kind, found.invariant, log, found.offset, found.what from ("
            f"select log, explode(filter(array({found}), it -> it is not null)) as found from ({self.source}))"
        )


VIEWS = (
    View("intact", "select * from {batches} where damage is null"),
    View(
        "places",
        """
        select log, producer, epoch, number, min(base) as base, min(count) as count, min(base + count) as ends,
               max(base) as other_base, max(count) as other_count, bool_or(certain) as certain,
               any_value(whole_from) as whole_from, any_value(next_offset) as next_offset,
               any_value(markers) as markers
        from (
            select log, producer, epoch, number, base, count, doubtful is null as certain
            from {told} left join (select distinct producer, true as doubtful from {told} where fate = 'PREPARED')
                 using (producer)
            where fate = 'COMMITTED' and trusted and base is not null
            union all
            select log, producer, epoch, number, base, count, true from {windows} where damage is null
        ) join {logs} using (log)
        where is_topic and count > 0
        group by log, producer, epoch, number
        """,
        kept=True,
    ),
    View(
        "known",
        "select log, producer, min(base) as known_from from {places} where certain group by log, producer",
    ),
    View(
        "fits",
        f"""
        with pieces as (
            select log, base, key, producer, epoch,
                   explode(sequence(base div {BUCKET_OFFSETS}, key div {BUCKET_OFFSETS})) as bucket
            from {{intact}} join {{logs}} using (log) where transactional and not control and not markers
        ),
        spans as (
            select log, base, ends, producer, epoch, number,
                   explode(sequence(base div {BUCKET_OFFSETS}, (ends - 1) div {BUCKET_OFFSETS})) as bucket
            from {{places}} where not markers
        )
        select b.log, b.base, b.key, b.producer, b.epoch, p.base as place, p.ends, p.producer as place_producer,
               p.epoch as place_epoch, p.number,
               b.producer = p.producer and b.epoch = p.epoch and b.base >= p.base and b.key < p.ends as own
        from pieces b join spans p using (log, bucket)
        where p.base <= b.key and b.base < p.ends
          and bucket = greatest(p.base div {BUCKET_OFFSETS}, b.base div {BUCKET_OFFSETS})
        """,
        kept=True,
    ),
    View(
        "runs",
        """
        with numbered as (
            select *, count_if(control) over (partition by log, producer order by key
                                              rows between unbounded preceding and 1 preceding) as nth
            from {intact} join {logs} using (log)
            where markers and transactional and key >= log_start and not (control and committed is null)
        )
        select log, producer, nth, any_value(whole_from) as whole_from, min(epoch) as epoch, max(epoch) as last_epoch,
               min(base) filter (where not control) as first_offset,
               coalesce(sum(count) filter (where not control), 0) as records,
               max(key) filter (where control) as marker, bool_or(committed) filter (where control) as committed
        from numbered group by log, producer, nth
        """,
        kept=True,
    ),
    View(
        "parts",
        """
        select t.*, is_topic, markers, shown, w.base as window_base, w.count as window_count,
               coalesce(t.base, w.base) as place, coalesce(t.count, w.count) as records
        from {told} t join {logs} using (log) left join {windows} w using (log, producer, epoch, number)
        where t.damage is null
        """,
        kept=True,
    ),
    View(
        "ordered",
        "select * from {parts} where commit_order is not null and fate <> 'ABORTED' and trusted and records > 0",
    ),
)
"""In the order in which they are built. `parts`: what a group journal tells of a transaction in one log that there is,
and what the producer's window there says of it."""

_BATCHES = Check(
    "select *, coalesce(due, whole_from) as expected from {batches} join {logs} using (log)",
    (
        Rule("damaged batch", None, "damage is not null", "coalesce(key, due, 0)", "damage"),
        Rule(
            "wrong key",
            2,
            "last <> key",
            "key",
            "format_string('the batch there says that its last offset is %d', last)",
        ),
        Rule(
            "hole",
            2,
            "base > expected and expected >= holes_before",
            "expected",
            "format_string('the offsets %d to %d are missing', expected, base - 1)",
        ),
        Rule(
            "offset twice",
            2,
            "base < due",
            "base",
            "format_string('the batch begins with %d, and the one before it ends with %d', base, due - 1)",
        ),
        Rule(
            "control batch",
            1,
            "control and (committed is null or not markers)",
            "key",
            "if(markers, 'a control batch that marks the end of no transaction', "
            "'a control batch, in a topic of the mode journal')",
        ),
    ),
)

_ENDS = Check(
    """
    select l.*, coalesce(e.ends, log_start) as ends from {logs} l
    left join (select log, max(key) + 1 as ends from {batches} group by log) e using (log)
    where is_topic
    """,
    (
        Rule(
            "wrong end",
            2,
            "ends <> next_offset",
            "next_offset",
            "format_string('its batches end before offset %d, its record has next offset %d', ends, next_offset)",
        ),
    ),
)

_SEQUENCES_ONLY_GO_ON = Check(
    """
    with produced as (select * from {intact} where producer <> -1 and not control),
    neighbours as (
        select log, producer, epoch, sequence, base, lag(struct(epoch, last_sequence, base))
               over (partition by log, part, producer order by key) as before
        from produced
    ),
    edges as (
        select log, part, producer, min_by(struct(epoch, sequence, base), key) as head,
               max_by(struct(epoch, last_sequence, base), key) as tail
        from produced group by log, part, producer
    ),
    ranges as (
        select log, producer, head.*, lag(tail) over (partition by log, producer order by part) as before from edges
    )
    select * from neighbours union all select * from ranges
    """,
    (
        Rule(
            "sequence",
            4,
            f"""
            sequence <> 0 and (epoch < before.epoch or epoch = before.epoch and
                pmod(cast(sequence as bigint) - before.last_sequence - 1, {_SEQUENCES}L) >= {_SEQUENCES // 2 - 1}L)
            """,
            "base",
            """
            format_string('producer %d comes with epoch %d, sequence %d, behind epoch %d, sequence %d at offset %d: a '
                          || 'batch is there twice, or out of order',
                          producer, epoch, sequence, before.epoch, before.last_sequence, before.base)
            """,
        ),
    ),
)
"""On the circle of int32. They may begin with 0 again, when the producer had been forgotten meanwhile."""

_FIRST_BATCH_ONCE = Check(
    """
    select log, producer, epoch, crc, count(*) as times, min(base) as first, max(base) as last_one
    from {intact} where producer <> -1 and not control and sequence = 0
    group by log, producer, epoch, crc, count
    """,
    (
        Rule(
            "batch twice",
            4,
            "times > 1",
            "last_one",
            """
            format_string('the first batch of producer %d, epoch %d, is there %d times, byte for byte, the first time '
                          || 'at offset %d', producer, epoch, times, first)
            """,
        ),
    ),
)
"""Of a batch with sequence 0 the order of sequences cannot tell."""

_PLACES = (
    Check(
        """
        select *, lead(struct(base, producer, epoch, number)) over (partition by log, markers order by base) as next
        from {places}
        """,
        (
            Rule(
                "contradicting places",
                4,
                "base <> other_base or count <> other_count",
                "base",
                """
                format_string('transaction %d.%d.%d has %d records at offset %d, and %d at %d: the group journal and '
                              || 'the window of the producer disagree',
                              producer, epoch, number, count, base, other_count, other_base)
                """,
            ),
            Rule(
                "places overlap",
                3,
                "not markers and next.base < ends",
                "next.base",
                """
                format_string('transactions %d.%d.%d and %d.%d.%d are both placed here', producer, epoch, number,
                              next.producer, next.epoch, next.number)
                """,
            ),
            Rule(
                "place behind the end",
                5,
                "ends > next_offset",
                "base",
                """
                format_string('transaction %d.%d.%d has %d records from here on, and the log ends at %d',
                              producer, epoch, number, count, next_offset)
                """,
            ),
        ),
    ),
    Check(
        """
        select p.*, ends - greatest(base, whole_from) as due, coalesce(c.found, 0) as found
        from {places} p left join (
            select f.log, place_producer as producer, place_epoch as epoch, number,
                   sum(key + 1 - greatest(base, whole_from)) as found
            from {fits} f join {logs} using (log) where own and key >= whole_from
            group by f.log, place_producer, place_epoch, number
        ) c using (log, producer, epoch, number)
        where not markers and ends > whole_from and ends <= next_offset
        """,
        (
            Rule(
                "torn transaction",
                5,
                "found <> due",
                "base",
                """
                format_string('transaction %d.%d.%d has the offsets %d to %d; %d of these %d are there as its records',
                              producer, epoch, number, base, ends - 1, found, due)
                """,
            ),
        ),
    ),
    Check(
        """
        select log, base, key, producer, epoch, bool_or(own) as fits,
               min_by(struct(place_producer, place_epoch, number, place, ends), place) as it
        from {fits} group by log, base, key, producer, epoch
        """,
        (
            Rule(
                "stranger in a transaction",
                3,
                "not fits",
                "base",
                """
                format_string('a batch of producer %d, epoch %d, from %d to %d, in a place of transaction %d.%d.%d, '
                              || 'which has the offsets %d to %d', producer, epoch, base, key,
                              it.place_producer, it.place_epoch, it.number, it.place, it.ends - 1)
                """,
            ),
        ),
    ),
    Check(
        """
        select b.log, b.base, b.producer, b.epoch
        from {intact} b join {logs} using (log) join {known} using (log, producer)
        left anti join {fits} f on f.log = b.log and f.key = b.key
        where transactional and not control and not markers and b.base >= known_from
        """,
        (
            Rule(
                "transaction of nobody",
                1,
                "true",
                "base",
                """
                format_string('a transactional batch of producer %d, epoch %d, that no committed transaction has here: '
                              || 'copied twice, or never committed', producer, epoch)
                """,
            ),
        ),
    ),
)

_MARKERS = (
    Check(
        """
        select r.*, p.epoch as place_epoch, number, p.count
        from {runs} r left join {places} p on p.log = r.log and p.producer = r.producer and p.base = r.first_offset
        """,
        (
            Rule(
                "torn transaction",
                5,
                "committed and first_offset >= whole_from and (epoch <> place_epoch or records <> count)",
                "first_offset",
                """
                format_string('the marker at %d commits %d records of producer %d, epoch %d, from here on; '
                              || 'transaction %d.%d.%d has %d',
                              marker, records, producer, epoch, producer, place_epoch, number, count)
                """,
            ),
            Rule(
                "older epoch",
                9,
                "epoch <> last_epoch",
                "first_offset",
                """
                format_string('one transaction of producer %d has batches or its marker of the epochs %d and %d',
                              producer, epoch, last_epoch)
                """,
            ),
        ),
    ),
    Check(
        """
        select r.* from (
            select *, max(if(marker >= whole_from, 1, 0)) over (
                       partition by log, producer order by nth rows between unbounded preceding and 1 preceding) as seen
            from {runs}
        ) r join {known} using (log, producer)
        left anti join {places} p on p.log = r.log and p.producer = r.producer and p.base = r.first_offset
        where first_offset >= known_from
        """,
        (
            Rule(
                "transaction of nobody",
                1,
                "committed and (whole_from = 0 or seen = 1)",
                "first_offset",
                """
                format_string('the marker at %d commits %d records of producer %d, epoch %d, from here on, and nobody '
                              || 'knows of that transaction', marker, records, producer, epoch)
                """,
            ),
        ),
    ),
    Check(
        """
        select p.* from {places} p
        left anti join (select * from {runs} where committed) r
             on r.log = p.log and r.producer = p.producer and r.first_offset = p.base
        where markers and base >= whole_from and ends <= next_offset
        """,
        (
            Rule(
                "transaction without its marker",
                5,
                "true",
                "base",
                """
                format_string('transaction %d.%d.%d is committed with %d records from here on, and no marker ends it',
                              producer, epoch, number, count)
                """,
            ),
        ),
    ),
)
"""Left out where no topic has markers."""

_TOLD = (
    Check(
        "select log, damage from {told} union all select log, damage from {windows}",
        (Rule("damaged transactions", None, "damage is not null", "null", "damage"),),
    ),
    Check(
        """
        select *, lag(struct(producer, epoch, number, transactional_id, place, records, unit)) over (
                   partition by journal, transactional_id, log order by commit_order) as before, false as neighbours
        from {ordered}
        union all
        select *, lag(struct(producer, epoch, number, transactional_id, place, records, unit)) over (
                   partition by journal, commit_group, log order by commit_order) as before, true as neighbours
        from {ordered} where grouped and not markers
        """,
        (
            Rule(
                "wrong order",
                6,
                """
                place <= before.place and unit <> before.unit
                and (not neighbours or transactional_id <> before.transactional_id)
                """,
                "place",
                """
                format_string('transaction %d.%d.%d of %s lies here, and %d.%d.%d, which its group has committed '
                              || 'before it, at %d', producer, epoch, number, transactional_id,
                              before.producer, before.epoch, before.number, before.place)
                """,
            ),
            Rule(
                "lanes apart",
                3,
                "unit = before.unit and place <> before.place + before.records",
                "place",
                """
                format_string('%s: transaction %d.%d.%d lies here, due is %d, behind the lane before', unit,
                              producer, epoch, number, before.place + before.records)
                """,
            ),
        ),
    ),
    Check(
        "select * from {parts} where expected is not null",
        (
            Rule(
                "records lost or added",
                5,
                "fate = 'COMMITTED' and expected <> coalesce(count, 0)",
                "place",
                """
                format_string('COMMITTED has %d records of transaction %d.%d.%d of %s here, PREPARE_COMMIT expected %d',
                              coalesce(count, 0), producer, epoch, number, transactional_id, expected)
                """,
            ),
            Rule(
                "records lost or added",
                5,
                "fate = 'PREPARED' and expected <> window_count",
                "place",
                """
                format_string('there are %d records of transaction %d.%d.%d of %s here, PREPARE_COMMIT expected %d',
                              window_count, producer, epoch, number, transactional_id, expected)
                """,
            ),
        ),
    ),
    Check(
        """
        select min_by(log, window_base) as log, min(window_base) as base, unit, count(window_base) as there,
               collect_list(if(missing, shown, null)) as missing
        from (
            select p.*, window_base is null and not coalesce(f.forgets, false) as missing
            from {parts} p left join (
                select log, producer, bool_or(forgets) as forgets from {windows} group by log, producer
            ) f using (log, producer)
            where fate = 'PREPARED' and expected > 0
        ) group by journal, unit
        """,
        (
            Rule(
                "half a transaction",
                7,
                "there > 0 and size(missing) > 0",
                "base",
                """
                format_string('%s is here, and is missing in %s', unit, array_join(slice(missing, 1, 10), ', '))
                """,
            ),
        ),
    ),
    Check(
        """
        select w.*, transactional_id, fate
        from (select distinct producer, epoch, number, transactional_id, fate from {told}
              where trusted and fate in ('ABORTED', 'BEGUN')) t
        join {windows} w using (producer, epoch, number)
        """,
        (
            Rule(
                "never committed",
                1,
                "true",
                "base",
                """
                format_string('transaction %d.%d.%d of %s %s, yet %d records of it are placed here', producer, epoch,
                              number, transactional_id, if(fate = 'ABORTED', 'is aborted', 'has only begun'), count)
                """,
            ),
        ),
    ),
    Check(
        """
        select max_by(log, apply_number) as log, max_by(base, apply_number) as base, unit, min(apply_number) as one,
               max(apply_number) as other
        from (
            select w.*, coalesce(unit, format_string('transaction %d.%d.%d', producer, epoch, number)) as unit
            from {windows} w left join (
                select distinct producer, epoch, number, unit from {told} where fate in ('COMMITTED', 'PREPARED')
            ) using (producer, epoch, number)
            where w.damage is null
        ) group by unit
        """,
        (
            Rule(
                "apply numbers differ",
                6,
                "one <> other",
                "base",
                "format_string('%s has more than one apply number in its logs: %d and %d', unit, one, other)",
            ),
        ),
    ),
)


def checks(*, markers: bool) -> tuple[Check, ...]:
    """All that there are to be made; `markers`: some topic has transactions of marker mode."""
    return (_BATCHES, _ENDS, _SEQUENCES_ONLY_GO_ON, _FIRST_BATCH_ONCE, *_PLACES, *(_MARKERS if markers else ()), *_TOLD)


@dataclass(frozen=True, slots=True)
class Number:
    """One whole number of the report: its query has one row, with one column `number`."""

    name: str
    sql: str


PROVED = (
    Number("data logs", "select count(*) as number from {logs} where is_topic"),
    Number("batches", "select count(*) as number from {intact}"),
    Number("records", "select coalesce(sum(count), 0) as number from {intact} where not control"),
    Number("bytes", "select coalesce(sum(size), 0) as number from {intact}"),
    Number(
        "transactions whose places are known",
        "select count(*) as number from (select distinct producer, epoch, number from {places})",
    ),
    Number("transactional batches found in their places", "select count(*) as number from {fits} where own"),
    Number("transactions found with their markers", "select count(marker) as number from {runs}"),
    Number(
        "transactions in their group's order",
        "select count(*) as number from (select distinct producer, epoch, number from {ordered})",
    ),
)
"""What was looked at."""

NOT_PROVED = (
    Number(
        "transactional batches older than what is known of their producers",
        """
        select count(*) as number from {intact} b join {logs} using (log) left join {known} k using (log, producer)
        where transactional and not control and not markers and (known_from is null or b.base < known_from)
        """,
    ),
    Number(
        "places before a log's start, or where compaction was",
        "select count(*) as number from {places} where ends <= whole_from",
    ),
    Number(
        "group journals that may have lost something (not written with fsync=commit)",
        "select count(distinct journal) as number from {told} where not trusted",
    ),
)
"""What could not be looked at."""
