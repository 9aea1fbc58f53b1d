"""The HTTP API of managers: requests come in, calls of a `Control` go out."""
