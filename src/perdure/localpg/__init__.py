"""The private PostgreSQL of a project: find the binaries, create a cluster, start it, share it between processes, stop it."""
