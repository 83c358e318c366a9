"""For users' tests: a time-skipping environment and a replayer for recorded histories."""
