"""The runs that an engine holds in memory."""
