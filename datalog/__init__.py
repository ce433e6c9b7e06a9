"""The data logs: what consumers read. `interface` says what is promised, `environment` keeps it in LMDB."""
