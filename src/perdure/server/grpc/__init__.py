import os

# Before gRPC is loaded: else it stops its threads, or tells of them, whenever a program is started from this process.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
