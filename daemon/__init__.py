"""The process on every host. `daemon` is also the import name of python-daemon: DISTRIBUTION tells ours apart."""

DISTRIBUTION = "sbon"
