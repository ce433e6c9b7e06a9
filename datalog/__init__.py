"""The data logs: what consumers read. `interface` states the promises, `environment` keeps the data in LMDB."""
