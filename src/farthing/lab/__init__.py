"""Measurements of the machine and of what runs on it."""
