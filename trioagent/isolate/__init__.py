"""Tools in processes of their own, which end when they are told to, whatever they do.

`@tool(isolate="process")` runs a function in a warm worker, `shell.shell()` is a tool
that runs commands. Each process is watched by a warden, and ends with its owner.
"""
