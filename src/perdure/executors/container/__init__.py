"""The executor `container`: a command in a container of its own, through the API that Docker and Podman share.

executor.py   brings containers up, follows them, finds them again after a restart
spec.py       what a job asks for, held against what the worker allows; the request that creates a container
images.py     names of images, and the credentials of their registries
output.py     what a container writes
streams.py    its output on the wire
engine_api.py the requests to Docker or Podman
"""

from perdure.executors.container.executor import ContainerExecutor

__all__ = ["ContainerExecutor"]
