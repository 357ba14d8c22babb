"""A retrieval server of the kind that skyrl-gym and Search-R1 ask over HTTP: bm25s over passages, on one port.

    python -m benchmarks.retrieval_server FILE

FILE: a JSON list of passages. Prints its port, then serves until its standard input closes. For environments.py.
"""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.peers_shop import Search, bm25s_search


@functools.cache
def start(passages: tuple[str, ...]) -> str | None:
    """The URL of a server in a process of its own, which ends with this one; None where bm25s is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "passages.json"
        path.write_text(json.dumps(passages), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.retrieval_server", str(path)]
        root = Path(__file__).parents[1]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().strip()
    atexit.register(server.stdin.close)
    return f"http://127.0.0.1:{port}/retrieve" if port else None


def serve(passages: Sequence[str], search: Search) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        disable_nagle_algorithm = True
        wbufsize = -1  # an answer leaves in one piece

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = search(asked["query"], asked["topk"])
            answer = {"result": [[{"document": {"contents": passages[i]}} for i in found]]}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


def main() -> None:
    passages = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    search = bm25s_search(passages)
    if search is not None:
        serve(passages, search)


if __name__ == "__main__":
    main()
