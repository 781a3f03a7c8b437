"""Answers each line in upper case."""

import pathlib
import socketserver


class Handler(socketserver.StreamRequestHandler):
    """One client."""

    def handle(self):
        """Answer until the client leaves."""
        for line in self.rfile:
            self.wfile.write(line.upper())


socketserver.ThreadingTCPServer.allow_reuse_address = True
port = int(pathlib.Path(__file__).with_name("port").read_text())
with socketserver.ThreadingTCPServer(("127.0.0.1", port), Handler) as server:
    print("listening", flush=True)
    server.serve_forever()
