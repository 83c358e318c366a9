"""Acts that REST does not have."""

WITHOUT_ROUTE = {
    "run.run",
    *("service_call.begin", "service_call.accept", "service_call.ends", "service_call.close"),
    *("payload.announce", "payload.put", "payload.get"),
}
"""A client of REST starts a run and asks for its result: two requests. The executor of services, and workers and clients that upload,
ask over their gRPC connection."""
