"""How an engine writes: the committer, the rows of a commit, and when a batch is flushed."""
