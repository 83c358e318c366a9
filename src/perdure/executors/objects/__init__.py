"""Jobs that take their work from an object store and report there: a directory, S3, Google Cloud Storage or Azure.

layout.py     the objects of an attempt: their names and contents
spec.py       what a call may ask for
store.py      the store: get, put, create-if-absent, list
attempts.py   the executor's side: writes specs, reads states, decides that a job is lost
executor.py   the executor `objects`
job.py        the job's side: `perdure job`
child.py      the process that does the user's work
call.py       a Python function as such a process
"""
