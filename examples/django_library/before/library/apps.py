"""The library as an application of Django."""

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    name = "library"
