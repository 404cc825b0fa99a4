"""Runs of the program for benches."""
import json, shlex, subprocess, sys


def json_of(command):
    """What the program prints as JSON. Ends the bench if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)
