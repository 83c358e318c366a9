"""REST under /api/v1, the event stream, and plain pages for people. Thin: it reads a request, asks a use case, and writes the answer."""
