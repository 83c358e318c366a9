"""The executor `kubernetes`: a Job of the cluster for each attempt.

executor.py   creates Jobs, answers from the mirror, stops and deletes them
manifest.py   the Job of an attempt: image, command, resources, labels
mirror.py     Jobs and pods as the API server last described them, by list and watch
states.py     what a Job and its pods mean: running, done, failed, lost
logs.py       what a pod printed
"""

from perdure.executors.kubernetes.executor import KubernetesExecutor

__all__ = ["KubernetesExecutor"]
