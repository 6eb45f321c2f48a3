"""What links between fragments cost, beside the same query in one plain Spark process."""
