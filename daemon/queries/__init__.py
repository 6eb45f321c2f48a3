"""Queries from their text to their end, at the nodes that keep them."""
