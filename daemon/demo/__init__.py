"""The demo: five daemons on one machine, the distances of five cities between them, a real query that moves."""
