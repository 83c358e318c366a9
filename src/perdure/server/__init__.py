"""The doors to an engine: REST and pages, gRPC, and who may come in."""
