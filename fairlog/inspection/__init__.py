"""The content of a data directory's files in readable form: `fairlog inspect`. Read-only.

    files             which kind of file is it? a segment, data logs, the cluster store
    segments          header, frames, torn tail, damage                                  pure
    records           a frame's header in words                                          pure
    batches           a record batch's header, and its records                           pure
    data_logs         all tables and batches of the data logs                            pure
    cluster_stores    all records of a cluster store                                     pure
    persisted_groups  who is in a consumer group                                         pure
    lines             the output: as a line for people, or as JSON                       pure

Garbage is shown as garbage, where it is; it raises nothing.
"""
