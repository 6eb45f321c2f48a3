"""What runs on this host: fragments on its engine, their leases, links, replicas and moves, and when to move."""
