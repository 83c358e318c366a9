"""Tasks of Django. A worker of Perdure runs them."""

from django.core.mail import send_mail
from django_tasks import task  # Django 6: from django.tasks import task

from library.models import Hold


@task(queue_name="mail")
def confirm(hold_id: int) -> str:
    hold = Hold.objects.select_related("book", "member").get(pk=hold_id)
    send_mail("Your hold", f"We look for a copy of {hold.book}.", None, [hold.member.email])
    return hold.member.email
