"""The servers in front of an engine: REST and pages, gRPC, authentication."""
