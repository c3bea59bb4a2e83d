"""Load on `clearshot serve`: clients that upload, look, restore, poll, download and remove, for some seconds, against 127.0.0.1 only; then a
server that is killed with the work of all of them in its queue, and started again.

    python bench/serve_load.py PROGRAM [--clients 50] [--seconds 600] [--side 64] [--method auto] [--queue 40]

Starts a server of its own in a temporary folder. Refusals that are documented (503 with Retry-After) are counted and waited out; every other
status that is not a success, every job that fails and every job that is lost is an error. The server's memory is printed every `--every` seconds.
Ends with one line of JSON, and with 1 where there was an error.
"""

import argparse
import http.client
import json
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path


def npy(side, seed):
    draw = random.Random(seed)
    values = [100 + draw.randrange(40) for _ in range(side * side)]
    head = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({side}, {side}), }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + f"{head:<117}\n".encode() + struct.pack(f"<{len(values)}H", *values)


class Server:
    """A server whose folder outlives it."""

    def __init__(self, program, folder, queue):
        command = [program, "serve", "--address", "127.0.0.1:0", "--device", "cpu", "--max-queue", str(queue)]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().split()[1].rstrip("/").rsplit(":", 1)[1])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def memory(self):
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return [int(fields[key].split()[0]) // 1024 for key in ("VmRSS", "VmHWM")]


class Client(threading.Thread):
    def __init__(self, number, port, given, end):
        super().__init__()
        self.image, self.port, self.end = npy(given.side, number), port, end
        self.settings = {"method": given.method, "gain": 1, "read_noise": 2}
        self.statuses, self.errors, self.jobs, self.waits = Counter(), [], 0, []

    def ask(self, method, target, body=None):
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            connection.request(method, target, body=body)
            reply = connection.getresponse()
            data = reply.read()
            connection.close()
            self.statuses[reply.status] += 1
            if reply.status == 503 and reply.getheader("Retry-After"):
                time.sleep(1 + random.random())
                continue
            if reply.status >= 300:
                raise RuntimeError(f"{method} {target}: {reply.status} {data[:200]}")
            return data

    def begin(self):
        """Uploads, and asks for a job."""
        self.file = json.loads(self.ask("POST", "/api/files?name=a.npy", self.image))["file"]
        self.ask("GET", f"/api/tile?file={self.file}")
        self.job = json.loads(self.ask("POST", "/api/jobs", json.dumps({"file": self.file, "settings": self.settings})))["id"]

    def finish(self):
        """Waits for the job, fetches its result and removes everything."""
        while (now := json.loads(self.ask("GET", f"/api/jobs/{self.job}")))["state"] in ("queued", "running"):
            time.sleep(0.25)
        if now["state"] != "done":
            raise RuntimeError(f"job {self.job}: {now['state']} {now['error']}")
        if len(self.ask("GET", f"/api/download?file={now['made'][0]['file']}")) != len(self.image):
            raise RuntimeError("the result has another size")
        self.ask("DELETE", f"/api/jobs/{self.job}")
        self.ask("DELETE", f"/api/files?file={self.file}")
        self.jobs += 1

    def run(self):
        while time.time() < self.end:
            try:
                began = time.time()
                self.begin()
                self.finish()
                self.waits.append(time.time() - began)
            except Exception as e:  # counted, and the others go on
                self.errors.append(str(e))
                time.sleep(1)


def load(server, given):
    """What came of the clients, and the server's memory while they ran."""
    began = time.time()
    clients = [Client(n, server.port, given, began + given.seconds) for n in range(given.clients)]
    for client in clients:
        client.start()
    memory = []
    while any(client.is_alive() for client in clients):
        now, peak = server.memory()
        memory.append(now)
        done = sum(c.jobs for c in clients)
        print(f"{time.time() - began:5.0f} s: {now} MB (peak {peak}), {done} jobs, {sum(len(c.errors) for c in clients)} errors", file=sys.stderr)
        wake = time.time() + given.every
        while time.time() < wake and any(client.is_alive() for client in clients):
            time.sleep(0.5)
    waits = sorted(w for c in clients for w in c.waits)
    errors = [e for c in clients for e in c.errors]
    return errors, {
        "clients": given.clients, "seconds": given.seconds, "side": given.side, "method": given.method, "jobs": sum(c.jobs for c in clients),
        "answers": dict(sum((c.statuses for c in clients), Counter())), "errors": len(errors), "first_errors": errors[:3],
        "median_s": round(waits[len(waits) // 2], 2) if waits else None, "slowest_s": round(waits[-1], 2) if waits else None,
        "rss_mb": memory, "peak_mb": server.memory()[1],
    }


def killed(server, program, folder, given):
    """Kills a server while it works, with the queue full, and lets the next one finish."""
    clients = [Client(n, server.port, given, 0) for n in range(min(given.clients, given.queue))]
    for client in clients:
        client.begin()
    while not any(json.loads(clients[0].ask("GET", f"/api/jobs/{c.job}"))["state"] == "running" for c in clients):
        time.sleep(0.01)
    server.kill()
    began, again = time.time(), Server(program, folder, given.queue)
    try:
        errors = []
        for client in clients:
            client.port = again.port
            try:
                client.finish()
            except Exception as e:  # counted, and the others go on
                errors.append(str(e))
        return errors, {"jobs": len(clients), "done": sum(c.jobs for c in clients), "seconds": round(time.time() - began, 1)}
    finally:
        again.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--method", default="auto")
    parser.add_argument("--queue", type=int, default=40, help="jobs that may wait; with more clients some are refused")
    parser.add_argument("--every", type=float, default=30, help="seconds between lines on memory")
    given = parser.parse_args()
    if not (1 <= given.clients <= 100 and 1 <= given.seconds <= 900):
        parser.error("up to 100 clients and 900 seconds")
    program = str(Path(given.program).resolve())
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, folder, given.queue)
        try:
            errors, report = load(server, given)
            report["jobs_left"] = len(list((Path(folder) / "clearshot-serve" / "jobs").iterdir()))
            more, report["killed"] = killed(server, program, folder, given)
        finally:
            server.kill()
        print(json.dumps(report))
        sys.exit(1 if errors or more or report["jobs_left"] else 0)


main()
