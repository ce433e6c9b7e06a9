"""The node's identity, its topics and free ids: `interface` defines what can be asked, `embedded` keeps it in LMDB."""
