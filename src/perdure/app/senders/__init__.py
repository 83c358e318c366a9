"""How notifications leave: signed webhooks, chat messages, mail. engine/services/outbox.py decides what is sent and when."""
