"""One file an endpoint: from a request of ASGI to its response."""
