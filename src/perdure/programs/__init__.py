"""What `perdure server`, `worker`, `dev` and `check` are: processes with settings, logs and signals. Not part of perdure-core."""
