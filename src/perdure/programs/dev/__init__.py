"""`perdure dev`: a server, workers and a private PostgreSQL in one command."""
