"""Perdure in a Django application: `INSTALLED_APPS = [..., "perdure.frameworks.django"]`.

    from perdure.frameworks.django import client, start

    with transaction.atomic():
        order = Order.objects.create(...)
        order.run = start(ship, order.pk)     # the run exists if and only if this transaction commits
        order.save()

    client().get(order.run).status()          # the one client of this process

`PERDURE` in Django's settings says where Perdure is: configuration.py. `manage.py perdure_worker` runs the workflows of the installed apps. The
backend for Django's tasks is `perdure.frameworks.django.tasks.PerdureBackend`.
"""

from perdure.frameworks.django.clients import aclient, client
from perdure.frameworks.django.starts import emit, signal, start

__all__ = ["aclient", "client", "emit", "signal", "start"]
