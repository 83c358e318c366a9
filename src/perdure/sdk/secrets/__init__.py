"""Secrets on a worker: where values come from, and what is done so that they are not recorded.

known.py       the values that tasks of this process read, which are masked in everything that is kept or shown
providers.py   environment, files, and the port for other sources
store.py       asks the providers in order, with a timeout and a short memory
"""
