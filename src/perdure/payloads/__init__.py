"""Payload stores: the database's, through a port, and object stores; and the way of values into them and back."""
