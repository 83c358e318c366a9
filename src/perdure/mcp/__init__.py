"""`perdure mcp`: a Model Context Protocol server, whose tools are requests to the REST API of a Perdure server.

`bounds.py` keeps answers small, `tools.py` has what a tool is, `reading.py` and `changing.py` have the tools, `serving.py` the protocol.
"""
