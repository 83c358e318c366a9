"""Planted bugs: how many of them do the tests catch? See run.py."""
