"""Settings of the example application for a test in which Perdure is a server."""

import os

from config.settings import *  # noqa: F403

PERDURE = {"SERVER": os.environ["LIBRARY_SERVER"], "DATABASE": "default", "WORKER": {"slots": 7, "drain_s": "5s"}}
