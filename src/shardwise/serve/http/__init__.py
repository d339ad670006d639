"""The HTTP server: OpenAI's API over an engine.

Bodies flow in, are decoded into typed structs, and become generations in tokens; tokens flow out
of the engine's thread into a queue per request, and become text, JSON and server-sent events on
the event loop. A client that goes away cancels what it asked for.
"""
