"""Books, members, and the holds that members place on books."""

from django.db import models


class Book(models.Model):
    title = models.CharField(max_length=200)
    copies = models.PositiveIntegerField(default=1)
    """On the shelf."""

    def __str__(self) -> str:
        return self.title


class Member(models.Model):
    name = models.CharField(max_length=100)
    email = models.EmailField(unique=True)

    def __str__(self) -> str:
        return self.name


class Hold(models.Model):
    class Status(models.TextChoices):
        PLACED = "placed"
        READY = "ready"
        COLLECTED = "collected"
        EXPIRED = "expired"

    book = models.ForeignKey(Book, on_delete=models.CASCADE)
    member = models.ForeignKey(Member, on_delete=models.CASCADE)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PLACED)
    placed_at = models.DateTimeField(auto_now_add=True)
    run = models.CharField(max_length=64, default="", editable=False)
    """Of the workflow prepare_hold."""

    def __str__(self) -> str:
        return f"{self.book} for {self.member}"
