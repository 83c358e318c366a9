"""Background services of an engine, one file each."""
