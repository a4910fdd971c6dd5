"""Exports the history of every run of a server and has the published verifier judge it.

Usage: DW_URL=… DW_TOKEN=… python verify_histories.py
"""

import json
import os
import sys
import urllib.parse
import urllib.request

from durable_workflow.history_bundle_verify import verify_bundle_json

URL = os.environ["DW_URL"].rstrip("/")
HEADERS = {
    "Authorization": f"Bearer {os.environ['DW_TOKEN']}",
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Namespace": "default",
}


def get(path: str) -> str:
    request = urllib.request.Request(f"{URL}/api{path}", headers=HEADERS)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def workflows():
    token = None
    while True:
        query = {"page_size": "200"} | ({"next_page_token": token} if token else {})
        page = json.loads(get(f"/workflows?{urllib.parse.urlencode(query)}"))
        yield from (workflow["workflow_id"] for workflow in page["workflows"])
        token = page.get("next_page_token")
        if not token:
            return


def main() -> int:
    runs = 0
    bad = 0
    for workflow in sorted(set(workflows())):
        path = f"/workflows/{urllib.parse.quote(workflow, safe='')}/runs"
        for run in json.loads(get(path))["runs"]:
            runs += 1
            report = verify_bundle_json(get(f"{path}/{run['run_id']}/history/export"))
            if report.get("status") != "ok":
                bad += 1
                print(f"FAIL history.{run['run_id']}: {json.dumps(report)[:1000]}")
    if runs == 0:
        print("FAIL histories: there are no runs")
        return 1
    if bad == 0:
        print(f"ok histories.verified ({runs} runs)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
