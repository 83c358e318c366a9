"""JSON over HTTP."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from library.models import Book, Hold, Member
from library.tasks import confirm
from library.workflows import picked_up, prepare_hold, stage
from perdure.frameworks.django import client, signal, start


@require_GET
def books(request: HttpRequest) -> JsonResponse:
    found = Book.objects.order_by("title").values("id", "title", "copies")
    return JsonResponse({"books": list(found)})


@require_POST
def place_hold(request: HttpRequest) -> JsonResponse:
    book = get_object_or_404(Book, pk=request.POST.get("book"))
    member = get_object_or_404(Member, pk=request.POST.get("member"))
    with transaction.atomic():
        hold = Hold.objects.create(book=book, member=member)
        hold.run = start(prepare_hold.options(key=f"hold-{hold.pk}"), hold.pk)
        hold.save()
        confirm.enqueue(hold.pk)
    return JsonResponse({"hold": hold.pk}, status=201)


@require_GET
def hold(request: HttpRequest, pk: int) -> JsonResponse:
    found = get_object_or_404(Hold, pk=pk)
    is_underway = found.run and found.status in (Hold.Status.PLACED, Hold.Status.READY)
    now = client().query(stage, found.run) if is_underway else ""
    return JsonResponse({"hold": found.pk, "status": found.status, "stage": now})


@require_POST
def collected(request: HttpRequest, pk: int) -> JsonResponse:
    found = get_object_or_404(Hold, pk=pk)
    with transaction.atomic():
        found.status = Hold.Status.COLLECTED
        found.save()
        if found.run:  # a hold from before has none
            signal(picked_up, found.run, True)
    return JsonResponse({"hold": found.pk, "status": found.status})
