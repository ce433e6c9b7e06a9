"""Reading: what is read of which logs, within which limits, and how long a reader waits for it.

Both protocols of the listener read through this room; it knows the messages of neither.

    plan.py         pure: how much of which log one read takes, and when it has enough
    watchlist.py    pure: the logs that a reader follows, and which of them may have something new
    service.py      reads in worker threads, and waits for new records (the long poll)
    cuts.py         up to where logs can be read together without splitting a transaction

A protocol parses its request, lets this room read, and encodes what was found.
"""
