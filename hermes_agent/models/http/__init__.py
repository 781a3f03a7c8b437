"""Requests to model servers over HTTP/1.1, on the connections of httpcore2."""
