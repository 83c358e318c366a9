"""Folds of a run's rows and history into lanes over time. Pure."""
