"""A live run inside a worker."""
