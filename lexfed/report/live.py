"""`lexfed run --live`: the page of a run while it goes on, on loopback.

The address holds a secret word, as a page may quote texts, and other users of this machine reach
loopback too. The page is made anew when somebody asks for it and a round has ended since; a browser
asks by itself every few seconds. After the run it is told the last page, and no longer asks.
"""

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lexfed.records.rundir import RunDir
from lexfed.report import frame
from lexfed.report.page import page

SECONDS = 3  # after which a browser asks again


@dataclass
class View:
    """What is shown: made once for each round."""

    run: RunDir
    word: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    over: bool = False
    met: bool = False  # somebody looks
    told: threading.Event = field(default_factory=threading.Event)  # the last page, to somebody
    shown: tuple[tuple[int, bool], bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self) -> bytes:
        with self.lock:
            now = (len(self.run.records()), self.over)
            if self.shown is None or self.shown[0] != now:
                self.shown = now, self._made().encode()
            return self.shown[1]

    def _made(self) -> str:
        if not self.run.records():
            return self._waiting("No round has ended yet. This page renews itself.")
        try:
            return page(self.run)
        except Exception:  # something is being written at this moment
            return self._waiting("The page is being written. It renews itself.")

    def _waiting(self, why: str) -> str:
        return frame.document(self.run.path.name, frame.paragraph(why), ())


@contextmanager
def live(run: RunDir) -> Iterator[str]:
    """The address of a run's page, for as long as this lasts."""
    view = View(run)
    server = _Quiet(("127.0.0.1", 0), _handler(view))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{view.word}"
        view.over = True
        with suppress(KeyboardInterrupt):  # who does not want to wait: the run has ended
            if view.met:  # whoever looks on should see the end
                view.told.wait(2 * SECONDS)
                time.sleep(0.1)  # until it has left
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Quiet(ThreadingHTTPServer):  # what readers do wrong is no word on the run's terminal
    daemon_threads = True

    def handle_error(self, *words: object) -> None:
        pass


def _handler(view: View) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):  # http.server takes a handler only as a subclass
        def do_GET(self) -> None:
            here = f"127.0.0.1:{self.connection.getsockname()[1]}"
            # another name may be another's page that reaches for ours
            known = secrets.compare_digest(self.path.strip("/").encode(), view.word.encode())
            if not known or self.headers.get("Host") != here:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            view.met, over = True, view.over
            content = view.page()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            if not over:
                self.send_header("Refresh", str(SECONDS))
            with suppress(ConnectionError):  # a reader that has gone
                self.end_headers()
                self.wfile.write(content)
                if over:
                    view.told.set()

        def log_message(self, *words: object) -> None:
            pass

    return Handler
