"""The inference engine and its HTTP server."""
