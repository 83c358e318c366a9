"""Settings of the library."""

import os

SECRET_KEY = os.environ.get("LIBRARY_SECRET_KEY", "for development only")
DEBUG = os.environ.get("LIBRARY_DEBUG") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = os.environ.get("LIBRARY_EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend")

INSTALLED_APPS = [
    "library",
    "perdure.frameworks.django",
]

PERDURE = {
    "DATABASE": "default",
}

TASKS = {
    "default": {
        "BACKEND": "perdure.frameworks.django.tasks.PerdureBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"attempts": 3},
    }
}

MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ.get("PGDATABASE", "library"),
        "USER": os.environ.get("PGUSER", ""),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
    }
}
