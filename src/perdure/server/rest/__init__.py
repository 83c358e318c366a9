"""REST under /api/v1, the event stream, and plain HTML pages. Thin: it reads a request, calls the API, and writes the response."""
