"""`manage.py perdure_worker` of examples/django_library/after, whose runs are taken over soon after it is killed."""

from __future__ import annotations

from functools import partial

from django.core.management import execute_from_command_line

import perdure.frameworks.django.worker
from perdure import EngineSettings

LEASE_S = 4.0

perdure.frameworks.django.worker.EngineSettings = partial(EngineSettings, lease_s=LEASE_S, heartbeat_s=LEASE_S / 4)  # type: ignore
execute_from_command_line(["manage.py", "perdure_worker"])
