"""What a topic need not keep: by age and size (`deletion`), or because a later record has the same key (`cleaning`)."""
