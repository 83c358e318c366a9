"""JSON over HTTP."""

from django.core.mail import send_mail
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from library.models import Book, Hold, Member


@require_GET
def books(request: HttpRequest) -> JsonResponse:
    found = Book.objects.order_by("title").values("id", "title", "copies")
    return JsonResponse({"books": list(found)})


@require_POST
def place_hold(request: HttpRequest) -> JsonResponse:
    book = get_object_or_404(Book, pk=request.POST.get("book"))
    member = get_object_or_404(Member, pk=request.POST.get("member"))
    hold = Hold.objects.create(book=book, member=member)
    send_mail("Your hold", f"We look for a copy of {book}.", None, [member.email])
    return JsonResponse({"hold": hold.pk}, status=201)


@require_GET
def hold(request: HttpRequest, pk: int) -> JsonResponse:
    found = get_object_or_404(Hold, pk=pk)
    return JsonResponse({"hold": found.pk, "status": found.status})


@require_POST
def collected(request: HttpRequest, pk: int) -> JsonResponse:
    found = get_object_or_404(Hold, pk=pk)
    found.status = Hold.Status.COLLECTED
    found.save()
    return JsonResponse({"hold": found.pk, "status": found.status})
