"""Removes records that a topic does not need to keep: by age and size (`deletion`), or by key (`cleaning`)."""
