"""Run with `python manage.py test`."""

import time

from django.core import mail
from django.test import TestCase, TransactionTestCase, override_settings
from django.test.utils import tag

from library.models import Book, Hold, Member
from library.tasks import confirm
from library.workflows import prepare_hold
from perdure import SyncPerdure
from perdure.frameworks.django import clients
from perdure.frameworks.django.configuration import database_dsn
from perdure.frameworks.django.testing import started


@override_settings(PERDURE={"START": "record"})
class HoldTests(TestCase):
    def setUp(self) -> None:
        self.book = Book.objects.create(title="Middlemarch", copies=1)
        self.member = Member.objects.create(name="Ada", email="ada@example.org")

    def test_books_are_listed(self) -> None:
        listed = self.client.get("/books/").json()
        self.assertEqual(listed, {"books": [{"id": self.book.pk, "title": "Middlemarch", "copies": 1}]})

    def test_a_hold_is_placed_with_its_workflow_and_its_mail(self) -> None:
        answer = self.client.post("/holds/", {"book": self.book.pk, "member": self.member.pk})
        self.assertEqual(answer.status_code, 201)
        hold = Hold.objects.get(pk=answer.json()["hold"])
        self.assertEqual(hold.status, Hold.Status.PLACED)
        self.assertEqual([one.name for one in started()], ["prepare_hold", "django_task"])
        self.assertEqual(started("prepare_hold")[0].args, (hold.pk,))

    def test_a_hold_from_before_is_collected_without_a_workflow(self) -> None:
        hold = Hold.objects.create(book=self.book, member=self.member, status=Hold.Status.READY)
        self.client.post(f"/holds/{hold.pk}/collected/")
        expected = {"hold": hold.pk, "status": "collected", "stage": ""}
        self.assertEqual(self.client.get(f"/holds/{hold.pk}/").json(), expected)
        self.assertEqual(started(), [])

    def test_the_task_is_a_function(self) -> None:
        hold = Hold.objects.create(book=self.book, member=self.member)
        self.assertEqual(confirm.call(hold.pk), "ada@example.org")
        self.assertEqual([m.to for m in mail.outbox], [["ada@example.org"]])


@tag("perdure")
class WholeWayTests(TransactionTestCase):
    """With an engine and a worker in this process, on the test database."""

    def setUp(self) -> None:
        self.addCleanup(clients.close)
        self.perdure = self.enterContext(SyncPerdure(database_dsn("default"), queues=["default", "mail"]))
        self.book = Book.objects.create(title="Middlemarch", copies=1)
        self.member = Member.objects.create(name="Ada", email="ada@example.org")

    def test_a_hold_gets_a_copy_and_is_collected(self) -> None:
        placed = self.client.post("/holds/", {"book": self.book.pk, "member": self.member.pk}).json()["hold"]
        hold = Hold.objects.get(pk=placed)
        run = self._run_of(hold)
        self._until(lambda: self.client.get(f"/holds/{placed}/").json()["stage"] == "waiting for its member")
        self.book.refresh_from_db()
        self.assertEqual(self.book.copies, 0)
        self.assertEqual(self.client.get(f"/holds/{placed}/").json()["status"], "ready")
        self._until(lambda: len(mail.outbox) == 2)
        self.client.post(f"/holds/{placed}/collected/")
        self.assertEqual(run.result("30s"), "collected")

    def _run_of(self, hold):
        self._until(lambda: [one for one in self.perdure.list() if one.id == hold.run])
        return self.perdure.get(hold.run, workflow=prepare_hold)

    def _until(self, is_true) -> None:
        for _ in range(1_000):
            if is_true():
                return
            time.sleep(0.03)
        self.fail("it took too long")
