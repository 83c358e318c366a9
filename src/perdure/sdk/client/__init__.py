"""Clients: handles of runs and the connection to a server."""
