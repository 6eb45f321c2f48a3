"""Simulations of whole overlays in virtual time."""
