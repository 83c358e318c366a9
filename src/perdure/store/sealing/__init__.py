"""How user data is sealed: compressed, encrypted and bound to its place, before it goes to the database, and opened when it is read.

    xaes.py     XAES-256-GCM: AES-256-GCM with nonces of 192 bits
    kinds.py    what is sealed, where it may stand, and what it is bound to
    codec.py    bytes to sealed bytes and back
    rows.py     parameters and rows of the named queries; the one place where values are sealed and opened

Nothing here talks to the database. store/payload_keys.py does, for the keys.
"""
