"""The engine owns runs, decides what is written and dispatches tasks.

    claim -> load -> activate -> commit -> dispatch -> report -> commit -> activate -> ... -> close

Laws:

1. What workflow code sees is durable: a fact is applied only after the commit that recorded it.
2. What workflow code asks for may be dispatched while its record is on the way: it follows from durable history, carries
   a deterministic id, and execution is at least once anyway.
3. One writer per run: the session that owns it. Every commit proves that the session still exists, in the same transaction.
4. Nothing waits in memory without bound, and nothing polls without a pause.
"""
