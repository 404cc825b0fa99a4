"""Runs of the program for benches."""
import json, shlex, subprocess, sys


def output_of(command):
    """What the program prints. Ends the bench if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def json_of(command):
    return json.loads(output_of(command))
