"""How fast Perdure is, next to what the same PostgreSQL does with the same rows and no engine.

Laws:

1. One machine, one server, one run: seconds on a shared machine mean little, so every figure stands beside the bare
   figure (bench/bare.py) that was measured just before and after it. Compare ratios.
2. Medians of repeats, with the spread. Workloads take turns, so that a noisy minute does not fall on one of them alone.
3. The server is as durable as in production: fsync and synchronous_commit on. The report says so.
4. Embedded mode: engine, worker and client are one Python process, hence one figure for their CPU time.
"""
