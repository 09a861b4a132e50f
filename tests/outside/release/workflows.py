#!/usr/bin/env python3
"""Parses workflows of GitHub, and checks what a run would stumble over: workflows.py FILE... It needs yaml."""

import os
import re
import subprocess
import sys

import yaml

wrong, jobs_seen, actions, scripts = [], 0, set(), 0


def check_job(file, name, job, jobs):
    global scripts
    at = f"{file}, job {name}"
    needs = needed(job)
    for other in needs:
        if other not in jobs:
            wrong.append(f"{at} needs {other}, which does not exist")
    if "timeout-minutes" not in job:
        wrong.append(f"{at} has no timeout-minutes")
    ids = {step["id"] for step in job["steps"] if "id" in step}
    text = yaml.dump(job)
    for step in re.findall(r"steps\.([a-z-]+)\.", text):
        if step not in ids:
            wrong.append(f"{at}: no step has the id {step}")
    matrix = job.get("strategy", {}).get("matrix", {})
    known = set(matrix) | {key for row in matrix.get("include", []) for key in row}
    for key in re.findall(r"matrix\.([a-z-]+)", text):
        if key not in known:
            wrong.append(f"{at}: the matrix has no {key}")
    for step in job["steps"]:
        if "run" in step:
            scripts += 1
            check_script(at, step["run"])
        if step.get("uses", "").startswith("actions/download-artifact@") and "name" in step["with"]:
            artifact = step["with"]["name"]
            if artifact not in uploaded(jobs, ancestors(name, jobs)):
                wrong.append(f"{at}: no job before it uploads {artifact}")


def needed(job):
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else needs


def ancestors(name, jobs):
    found = set()
    waiting = [name]
    while waiting:
        for other in needed(jobs[waiting.pop()]):
            if other in jobs and other not in found:
                found.add(other)
                waiting.append(other)
    return found


def uploaded(jobs, names):
    steps = [step for name in names for step in jobs[name]["steps"]]
    return {step["with"]["name"] for step in steps if step.get("uses", "").startswith("actions/upload-artifact@")}


def check_script(at, script):
    # What GitHub puts in is one word.
    script = re.sub(r"\$\{\{.*?\}\}", "word", script)
    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    if parsed.returncode != 0:
        wrong.append(f"{at}: {parsed.stderr.strip()}")
    for path in re.findall(r"(?:^|[\s(])((?:deploy|tests|\.ci)/[\w./-]+)", script, re.M):
        if not os.path.exists(path):
            wrong.append(f"{at}: there is no {path}")


for file in sys.argv[1:]:
    with open(file) as opened:
        text = opened.read()
    workflow = yaml.safe_load(text)
    for line in re.findall(r"^\s*(?:- )?uses: (.*)$", text, re.M):
        actions.add(line)
        if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line):
            wrong.append(f"{file}: {line}: name the commit, and the version behind it")
    if "permissions" not in workflow:
        wrong.append(f"{file} has no permissions, so its jobs have all")
    for name, job in workflow["jobs"].items():
        jobs_seen += 1
        check_job(file, name, job, workflow["jobs"])
if wrong:
    sys.exit("\n".join(wrong))
print(f"workflows: {jobs_seen} jobs, {scripts} scripts, {len(actions)} actions by their commits")
