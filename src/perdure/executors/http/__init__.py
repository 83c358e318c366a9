"""HTTP exchanges that may reach only what the worker allows."""
