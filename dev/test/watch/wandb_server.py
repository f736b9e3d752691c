"""As much of a server of Weights & Biases as a run needs, on a free port:  wandb_server.py HISTORY >PORT

Keeps what is logged in HISTORY, a line a step in the order of its coming, and resumes the run from there.
"""

import gzip
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROJECT = {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}}
history = sys.argv[1]


def lines():
    if not os.path.exists(history):
        return []
    with open(history, encoding="utf-8") as file:
        return file.read().splitlines()


def answer(operation, variables, host):
    """The data of an operation of GraphQL; none of one that a run can do without."""
    if operation == "Viewer":
        return {"viewer": {"id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
    if operation == "RunResumeStatus" and lines():
        counts = {"historyLineCount": len(lines()), "eventsLineCount": 0, "logLineCount": 0}
        return {"model": {**PROJECT, "bucket": {
            "id": "r", "name": variables["name"], "summaryMetrics": "{}", "displayName": "r", **counts, "tags": [],
            "historyTail": json.dumps(lines()[-1:]), "eventsTail": "[]", "config": "{}", "wandbConfig": '{"t": 1}'}}}
    if operation == "UpsertBucket":
        return {"upsertBucket": {"inserted": not lines(), "bucket": {
            "id": "r", "name": variables["name"], "displayName": "r", "project": PROJECT,
            "historyLineCount": len(lines())}}}
    if operation == "CreateRunFiles":
        files = [{"name": name, "uploadUrl": f"http://{host}/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
    return {}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        reply = {}
        if self.path == "/graphql":
            query = json.loads(body)
            reply = {"data": answer(query.get("operationName"), query.get("variables"), self.headers["Host"])}
        elif self.path.endswith("/file_stream"):
            for new in json.loads(body).get("files", {}).get("wandb-history.jsonl", {}).get("content", []):
                with open(history, "a", encoding="utf-8") as file:
                    file.write(new + "\n")
        reply = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_PUT = do_POST  # files

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
