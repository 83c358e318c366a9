"""Ended runs in object storage: one record per run, as JSON lines or Parquet, and a manifest that says what there is."""
