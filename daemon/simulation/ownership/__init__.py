"""Ownership under faults: the daemon's own rules and protocol objects, with a modelled engine, in virtual time."""
