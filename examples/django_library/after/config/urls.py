"""Addresses of the library."""

from django.urls import path
from library import views

urlpatterns = [
    path("books/", views.books),
    path("holds/", views.place_hold),
    path("holds/<int:pk>/", views.hold),
    path("holds/<int:pk>/collected/", views.collected),
]
