"""Run with `python manage.py test`."""

from django.core import mail
from django.test import TestCase

from library.models import Book, Hold, Member


class HoldTests(TestCase):
    def setUp(self) -> None:
        self.book = Book.objects.create(title="Middlemarch", copies=1)
        self.member = Member.objects.create(name="Ada", email="ada@example.org")

    def test_books_are_listed(self) -> None:
        listed = self.client.get("/books/").json()
        self.assertEqual(listed, {"books": [{"id": self.book.pk, "title": "Middlemarch", "copies": 1}]})

    def test_a_hold_is_placed_and_confirmed(self) -> None:
        answer = self.client.post("/holds/", {"book": self.book.pk, "member": self.member.pk})
        self.assertEqual(answer.status_code, 201)
        hold = Hold.objects.get(pk=answer.json()["hold"])
        self.assertEqual(hold.status, Hold.Status.PLACED)
        self.assertEqual([m.to for m in mail.outbox], [["ada@example.org"]])

    def test_a_hold_is_collected(self) -> None:
        hold = Hold.objects.create(book=self.book, member=self.member, status=Hold.Status.READY)
        self.client.post(f"/holds/{hold.pk}/collected/")
        self.assertEqual(self.client.get(f"/holds/{hold.pk}/").json(), {"hold": hold.pk, "status": "collected"})
