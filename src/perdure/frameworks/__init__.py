"""Perdure inside other frameworks: web applications and agents. Each module imports its framework; nothing else imports these modules."""
