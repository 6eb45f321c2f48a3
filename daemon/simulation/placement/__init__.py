"""``sbon simulate placement``: the strategies of the daemon over known networks, against the exact optimum."""
