"""`manage.py perdure_worker`."""
