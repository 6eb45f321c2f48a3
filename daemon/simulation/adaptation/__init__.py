"""``sbon simulate adaptation``: the local optimizer of the daemon while the network changes, against an omniscient."""
