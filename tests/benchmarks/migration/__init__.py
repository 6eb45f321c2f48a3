"""Time without output when a fragment moves, beside a twin that does not and beside plain Spark stopped and started."""
