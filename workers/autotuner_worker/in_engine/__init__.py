"""Code that runs inside the engine's own processes and interpreter.

Files of this folder are copied beside a launch (or run as scripts by the engine's Python); they import nothing of
this project and must never make the engine fail: every entry point swallows its own errors and says so in its answer.
"""
