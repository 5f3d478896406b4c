"""Compares the replay of generated logs with `wc -l` and a reader in Python: lines per second and memory.

usage: replay.py TOLLGATE [LINES [RUNS]]

Each run measures all cases once; the table shows the medians. The logs contain a million clients, and four
rules match by client, path and method. A log of four times the length is replayed once: its memory must be about the same.
Exit status 1: a goal was missed.
"""

import gzip
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

RULES = """
domain: api
rules:
- {id: per-client, per: [client_ip], limit: 10/s, burst: 20}
- {id: items, when: {path: /v1/**}, limit: 5000/s}
- {id: login, when: {path: /login, method: POST}, limit: 500/s}
- {id: all, limit: 20000/s}
"""
GOALS = {"plain": 0.8, "gzip": 0.5}  # million lines per second
GOAL_MEMORY = 200  # MB, in every case
# Memory may grow with the log only because a longer log contains more of the million clients.
LONGER = 4
GOAL_GROWTH = 1.25
LONG = f"plain, {LONGER} times the lines"
READER = "import re,sys\nfield=re.compile(r'(\\S+) \\S+ \\S+ \\[([^]]+)\\] \"(\\S+) (\\S+)')\nn=0\nfor line in open(sys.argv[1]):\n    n+=field.match(line) is not None\nprint(n)"


def write_log(path, lines, clients=1_000_000):
    """Writes a log in the combined format, followed by the time as nginx's `$msec`: seconds with three decimals."""
    random.seed(7)
    paths = ["/", "/v1/items", "/v1/items/%d", "/login", "/static/app.js", "/v1/search?q=%d"]
    now, last, stamp = 1_794_819_600.0, None, ""
    with open(path, "w") as log:
        for _ in range(lines):
            now += random.random() * 0.0002
            # Some clients are far busier than others.
            client = int(random.random() ** 3 * clients) if random.random() < 0.3 else random.randrange(clients)
            target = random.choice(paths)
            target = target % random.randrange(1000) if "%d" in target else target
            method = "POST" if target == "/login" else "GET"
            if int(now) != last:
                last = int(now)
                stamp = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(last))
            address = "10.%d.%d.%d" % (client >> 16 & 255, client >> 8 & 255, client & 255)
            log.write(
                f'{address} - - [{stamp}] "{method} {target} HTTP/1.1" 200 {random.randrange(9999)} "-" '
                f'"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36" {now:.3f}\n'
            )


def measure(command, output):
    """Runs a command; returns its seconds and its memory in MB."""
    start = time.monotonic()
    with open(output, "wb") as out:
        child = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command} failed")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def check_exact(output):
    """Ends the benchmark if a key got no entry: the capacity is too small, so less work was measured."""
    report = json.loads(output.read_text())
    if any(run and run["overflowed"] for run in (report["result"], report["at_once"])):
        sys.exit("a key got no entry; the capacity is too small")


def main():
    tollgate = sys.argv[1]
    lines = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        log, rules, packed = folder / "access.log", folder / "rules.yaml", folder / "access.log.gz"
        long, output = folder / "long.log", folder / "output"
        rules.write_text(RULES)
        write_log(log, lines)
        write_log(long, LONGER * lines)
        with open(log, "rb") as source, gzip.open(packed, "wb", 6) as target:
            shutil.copyfileobj(source, target)
        exact = '$remote_addr - - [$time_local] "$request" $status $bytes "-" "$http_user_agent" $msec'
        replay = [tollgate, "replay", "--json"]
        by_rules = [*replay, "--rules", str(rules)]
        cases = {
            "plain": [*by_rules, "--format", exact, str(log)],
            "gzip": [*by_rules, "--format", exact, str(packed)],
            "whole seconds, both spread and as bursts": [*by_rules, str(log)],
            "suggested limits, two passes": [*replay, "--suggest", "per=client_ip", "--format", exact, str(log)],
            LONG: [*by_rules, "--format", exact, str(long)],
            "wc -l": ["wc", "-l", str(log)],
            "Python reader with one pattern": [sys.executable, "-c", READER, str(log)],
        }
        results = {name: [] for name in cases}
        for run in range(runs):
            for name, command in cases.items():
                if name == LONG and run > 0:
                    continue
                results[name].append(measure(command, output))
                if command[0] == tollgate:
                    check_exact(output)
        missed = False
        memory_of = {name: max(memory for _, memory in measured) for name, measured in results.items()}
        print(f"{lines} lines, {log.stat().st_size >> 20} MiB, median of {runs} runs")
        print("| case | million lines/s | memory, MB | goal |\n|---|---|---|---|")
        for name, measured in results.items():
            count = LONGER * lines if name == LONG else lines
            speed = count / statistics.median(seconds for seconds, _ in measured) / 1e6
            is_replay, least = cases[name][0] == tollgate, GOALS.get(name, 0)
            is_missed = is_replay and (speed < least or memory_of[name] > GOAL_MEMORY)
            missed |= is_missed
            goal = " and ".join([f"{least}"] * bool(least) + [f"{GOAL_MEMORY} MB"] * is_replay)
            print(f"| {name} | {speed:.2f} | {memory_of[name]:.0f} | {goal}{' (missed)' if is_missed else ''} |")
        growth = memory_of[LONG] / memory_of["plain"]
        missed |= growth > GOAL_GROWTH
        print(f"memory with {LONGER} times as many lines, relative to the shorter log: {growth:.2f} (at most {GOAL_GROWTH})")
        sys.exit(missed)


main()
