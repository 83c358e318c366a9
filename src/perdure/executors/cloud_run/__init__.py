"""The executor `cloud-run`: a Cloud Run job with one execution for each attempt.

executor.py   creates jobs, observes them in batches, cancels and deletes them
api.py        Google's client within the quotas of the API
"""

from perdure.executors.cloud_run.executor import CloudRunExecutor

__all__ = ["CloudRunExecutor"]
