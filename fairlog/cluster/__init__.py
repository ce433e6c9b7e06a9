"""Who we are, which topics there are, which ids are free: `interface` says it, `embedded` keeps it in LMDB."""
