"""Opens the page of operations in a real browser and uses it as a user would.

    browser.py URL TOKEN SCREENSHOT

Speaks WebDriver to a chromedriver of its own, with nothing but Python's library. Prints `ok` or
`FAIL` lines and fails when one is not ok.
"""

import base64
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

CONTRACT = pathlib.Path(__file__).parent.parent / "tests/contract/seed.yaml"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1200,1600",
]
ENTRY = {"supported": False, "minimum_protocol_version": "1.18"}
# A registration that is complete at every version.
WORKER = {
    "worker_id": "browser",
    "task_queue": "browser",
    "capability_manifest": {
        "local_activities": ENTRY,
        "worker_sessions": ENTRY,
        "sticky_execution": ENTRY,
    },
}
# Longest wait of one command, in seconds.
PATIENCE = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
# Resolves when the page has listed its operations.
LISTED = """
const done = arguments[0], main = document.getElementById("operations");
const look = () => main.getAttribute("aria-busy") === "false" && done(true);
new MutationObserver(look).observe(main, {attributes: true});
look();
"""
# Resolves when an operation shows an answer, with its status and body.
ANSWERED = """
const [id, done] = arguments, shown = document.querySelector(`#${id} .answer`);
const look = () => {
  const status = shown.querySelector(".status");
  if (status) done([status.dataset.status, shown.querySelector(".body")?.textContent]);
};
new MutationObserver(look).observe(shown, {childList: true});
look();
"""

failed = []


def check(name, right, found):
    print(f"ok browser.{name}" if right else f"FAIL browser.{name}: {str(found)[-2000:]}")
    if not right:
        failed.append(name)


class Browser:
    """A session of chromedriver."""

    def __init__(self, profile):
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        port = None
        for line in self.driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                port = found.group(1)
                break
        if not port:
            sys.exit("chromedriver did not start")
        self.base = f"http://127.0.0.1:{port}"
        options = {
            "goog:chromeOptions": {"args": [*FLAGS, f"--user-data-dir={profile}"]},
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
            # What opens shows its contents a moment later, so elements are waited for.
            "timeouts": {"script": PATIENCE * 1000, "pageLoad": PATIENCE * 1000, "implicit": PATIENCE * 1000},
        }
        session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self.base += f"/session/{session['sessionId']}"

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            sys.exit(f"{method} {path}: {error.read().decode()}")

    def run(self, script, *arguments, kind="sync"):
        return self.call("POST", f"/execute/{kind}", {"script": script, "args": arguments})

    def find(self, selector):
        found = self.call("POST", "/element", {"using": "css selector", "value": selector})
        return f"/element/{found[ELEMENT]}"

    def click(self, selector):
        self.call("POST", f"{self.find(selector)}/click", {})

    def fill(self, selector, text):
        element = self.find(selector)
        self.call("POST", f"{element}/clear", {})
        self.call("POST", f"{element}/value", {"text": text})

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def end(self):
        try:
            self.call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()


def served(url):
    """The operations of the server's own documents."""
    found = set()
    for plane in ("worker-plane", "control-plane"):
        with urllib.request.urlopen(f"{url}/api/openapi/{plane}.json", timeout=PATIENCE) as answer:
            for item in json.load(answer)["paths"].values():
                found |= {one["operationId"] for one in item.values() if isinstance(one, dict)}
    return found


def send(browser, operation):
    browser.click(f"#{operation} .send")
    return browser.run(ANSWERED, operation, kind="async")


def use(browser, url, token, screenshot):
    browser.call("POST", "/url", {"url": f"{url}/docs"})
    browser.run(LISTED, kind="async")
    listed = set(browser.run(
        "return [...document.querySelectorAll('[data-operation]')].map((one) => one.dataset.operation)"
    ))
    contract = set(re.findall(r"operationId: (\w+)", CONTRACT.read_text()))
    check(f"every-operation-of-the-contract-is-listed ({len(contract)})", contract and contract <= listed, contract - listed)
    check(f"every-operation-of-the-server-is-listed ({len(listed)})", served(url) == listed, served(url) ^ listed)

    browser.click("#registerWorker summary")
    browser.fill("#registerWorker textarea", json.dumps(WORKER))
    status, body = send(browser, "registerWorker")
    check("without-a-token-a-request-is-refused", status == "401" or not token, (status, body))
    browser.fill("#token", token)
    status, body = send(browser, "registerWorker")
    registered = status == "200" and json.loads(body).get("registered") is True
    check("a-request-from-the-page-registers-a-worker", registered, (status, body))

    image = base64.b64decode(browser.call("GET", "/screenshot"))
    screenshot.parent.mkdir(parents=True, exist_ok=True)
    screenshot.write_bytes(image)
    check("a-screenshot-is-kept", image.startswith(b"\x89PNG"), image[:8])

    asked = set()
    for entry in browser.log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.add(message["params"]["request"]["url"])
    outside = {one for one in asked if not one.startswith((f"{url}/", "data:", "chrome:", "about:"))}
    check(f"nothing-outside-is-asked-for ({len(asked)} requests)", asked and not outside, outside)
    said = [one["message"] for one in browser.log("browser") 
            if one["level"] == "SEVERE" and "responded with a status" not in one["message"]]
    check("the-page-reports-no-error", not said, said)


def main():
    url, token, screenshot = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    with tempfile.TemporaryDirectory(prefix="leasehold-browser-", ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            use(browser, url, token, screenshot)
        finally:
            browser.end()
    print(f"screenshot: {screenshot}")
    sys.exit(1 if failed else 0)


main()
