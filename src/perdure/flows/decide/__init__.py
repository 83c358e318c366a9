"""The decider of a flow: history in, commands out."""
