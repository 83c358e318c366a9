"""The pure heart of Perdure: what happened, what is wanted, and what follows from it.

Laws of this package:

1. Nothing here does I/O, reads a clock or draws a random number. Time and randomness arrive as arguments.
2. A run's history is the only truth about it; every state in here can be rebuilt by folding events.
3. The same history and the same code give the same commands, always.
"""
