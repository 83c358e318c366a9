"""Tasks of the runs an engine owns: the backlog, their dispatch to workers, flow control."""
