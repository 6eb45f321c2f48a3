"""Belonging to a cluster: its authority, tokens, and what this node keeps of itself."""
