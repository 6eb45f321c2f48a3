"""``sbon simulate planning``: planners against the optimum (docs/planning.md)."""
