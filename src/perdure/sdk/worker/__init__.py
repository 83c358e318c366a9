"""A worker: executes tasks and workflow code, in this process or connected to a server."""
