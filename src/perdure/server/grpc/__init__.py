import os

# Set before gRPC is loaded: otherwise it stops its threads, or logs about them, whenever this process starts a program.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
