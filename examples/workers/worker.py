"""A Flyball worker in Python: the standard library alone.

    FLYBALL_URL=http://127.0.0.1:8080 FLYBALL_TOKEN=... python3 worker.py

Replace `render` and KINDS. A handler returns the result of its job, or raises Snooze, Throttled or Dead; any other
exception is a failed attempt. Between two steps it calls `job.step`, which stores the place from which a later
attempt goes on, and raises if the job must stop.
"""
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException

URL = os.environ.get("FLYBALL_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("FLYBALL_TOKEN", "")
NAME = os.environ.get("WORKER_NAME", f"{socket.gethostname()}-{os.getpid()}")
LEASE_S = float(os.environ.get("LEASE_S", "30"))
CLAIM = "/api/v1/claim"
stopping = threading.Event()


class Snooze(Exception):
    """The job runs again after `for_s` seconds; no attempt is used."""

class Throttled(Exception):
    """The receiver asked to wait; its argument is the seconds, or None."""

class Dead(Exception):
    """The job can never succeed."""

class Stopped(Exception):
    """The job is cancelled, or this worker stops."""

class Lost(Exception):
    """The job goes on elsewhere: the lease is lost."""


def call(path, body, timeout=15):
    """Posts `body`; repeats what Flyball, or a proxy before it, could not do for the moment."""
    while True:
        request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
        if TOKEN:
            request.add_header("authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 409:
                raise Lost(error.read().decode()) from None
            if error.code not in (429, 502, 503, 504):
                raise RuntimeError(f"{path} answered {error.code}: {error.read().decode()}") from None
            if stopping.is_set() and path == CLAIM:
                return {"jobs": []}
            wait = error.headers.get("retry-after", "")  # A proxy may answer with a date.
            time.sleep(int(wait) if wait.isdecimal() else 1)
        except (OSError, HTTPException) as error:  # No connection: the server restarts, or is away.
            if stopping.is_set():
                raise SystemExit(f"{path}: {error}; the lease ends by itself") from None
            print(f"{path}: {error}; trying again", flush=True)
            time.sleep(1)


class Job:
    """A job that this worker holds. Its lease is extended in the background until it ends."""

    def __init__(self, claimed):
        self.__dict__.update(claimed)
        self.state, self.over = None, threading.Event()
        self.beating = threading.Thread(target=self.beat, daemon=True)

    def beat(self):
        while not self.over.wait(LEASE_S / 3):
            try:
                self.heartbeat()
            except Lost:
                self.state = Lost
                return
            except Exception as error:
                print(f"job {self.id}: no heartbeat: {error}", flush=True)

    def heartbeat(self, **more):
        answer = call(f"/api/v1/jobs/{self.id}/heartbeat", {"lease": self.lease, **more})
        if answer["cancelled"]:
            self.state = Stopped

    def step(self, cursor, done, total, note=""):
        """Stores the place from which a later attempt goes on; raises if the job must stop here."""
        self.heartbeat(checkpoint=cursor, progress={"done": done, "total": total, "note": note})
        if self.state or stopping.is_set():
            raise self.state or Stopped

    def end(self, how, **more):
        self.over.set()
        return call(f"/api/v1/jobs/{self.id}/{how}", {"lease": self.lease, **more})

    def run(self, handler):
        self.beating.start()
        try:
            ended = self.end("complete", result=handler(self))
        except Snooze as snooze:
            ended = self.end("snooze", for_s=snooze.args[0])
        except Throttled as refused:
            wait = {"retry_after_s": refused.args[0]} if refused.args else {}
            ended = self.end("throttled", **wait)
        except Dead as error:
            ended = self.end("fail", error=str(error)[:1000] or "dead", retry=False)
        except Stopped:
            ended = self.end("release")
        except Lost:
            raise
        except Exception as error:  # Also a result that is too long. More than 4000 bytes of error would be refused.
            ended = self.end("fail", error=repr(error)[:1000])
        print(f"job {self.id} is {ended['state']}", flush=True)


def render(job):
    """Renders pages: the example of a long job. Its arguments can ask for every kind of end."""
    args, at = job.args, (job.checkpoint or {}).get("cursor", 0)
    pages = args.get("pages", 1)
    if at == 0 and ("snooze_s" in args or "refused_s" in args):
        job.heartbeat(checkpoint=1)
        raise Snooze(args["snooze_s"]) if "snooze_s" in args else Throttled(args["refused_s"])
    if "dead" in args:
        raise Dead(args["dead"])
    for page in range(at, pages):
        time.sleep(args.get("page_s", 0.0))
        print(f"job {job.id} attempt {job.attempt} page {page}", flush=True)
        job.step(page + 1, page + 1, pages, f"page {page + 1}")
    return {"pages": pages, "worker": NAME}


KINDS = {"render": render}


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    print(f"worker {NAME} asks {URL} for {', '.join(KINDS)}", flush=True)
    while not stopping.is_set():
        claim = {"worker": NAME, "host": socket.gethostname(), "kinds": list(KINDS), "lease_s": LEASE_S, "wait_s": 2}
        for claimed in call(CLAIM, claim)["jobs"]:
            try:
                Job(claimed).run(KINDS[claimed["kind"]])
            except Lost:
                print(f"job {claimed['id']} is lost", flush=True)


if __name__ == "__main__":
    main()
