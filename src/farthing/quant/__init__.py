"""Schemes: how weights become codes and come back. `formats.py` is the way in."""
