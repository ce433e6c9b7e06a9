"""Who may do what: who a client is, what it may do, and how much. Values and rules, below the cluster's store."""
