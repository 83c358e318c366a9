import os

os.environ.setdefault(
    "GRPC_VERBOSITY", "ERROR"
)  # before it is loaded: else it tells of its threads whenever a program is started
