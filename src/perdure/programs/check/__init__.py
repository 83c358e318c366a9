"""`perdure check`: would the code or the flow about to be deployed break runs in flight?

targets.py    what is about to be deployed: workflows, tasks and flows
collect.py    the paths that runs have taken, from the server, and histories of samples
observed.py   a journal that remembers where commands come from
replays.py    one history against code or a flow: the first thing that differs
static.py     what can be said without a replay
gate.py       all of it, and the report (findings.py)
"""
