#!/usr/bin/env bash
# Runs a batch as an array of a real Slurm, on this machine alone: bash tests/slurm.sh [HEADRACE], as root.
# By hand or at night. Four tasks share a file of requests; one of them is killed and requeued. The joined results must
# be those of a single run, but for times. Starts daemons of its own in a temporary folder and stops them at the end.
# HEADRACE: the program; none: build/release/cli/headrace.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tests/install.sh model slurm
program=$(realpath "${1:-build/release/cli/headrace}")
model=$(bash tests/fetch_model.sh)
root=$(mktemp -d)
chmod 755 "$root"
export SLURM_CONF=$root/slurm.conf
daemons=()
stop() {
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$root"
}
trap stop EXIT

# The daemon of the keys trusts nothing that another user could write to, so it has folders of its own.
mkdir -p "$root/munge" "$root/state" "$root/spool"
chown munge: "$root/munge" && chmod 711 "$root/munge"
(umask 077 && head -c 1024 /dev/urandom >"$root/munge/key")
chown munge: "$root/munge/key"
setpriv --reuid munge --regid munge --clear-groups munged --foreground --force --socket "$root/munge/socket" \
  --key-file "$root/munge/key" --log-file "$root/munge/log" --pid-file "$root/munge/pid" \
  --seed-file "$root/munge/seed" >/dev/null 2>&1 & daemons+=($!)

cat >"$SLURM_CONF" <<CONF
ClusterName=headrace
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthInfo=socket=$root/munge/socket
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool
SlurmctldPidFile=$root/slurmctld.pid
SlurmdPidFile=$root/slurmd.pid
SlurmctldLogFile=$root/slurmctld.log
SlurmdLogFile=$root/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SchedulerParameters=requeue_delay=0
MpiDefault=none
NodeName=$(hostname) NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
for _ in $(seq 50); do [ -S "$root/munge/socket" ] && break; sleep 0.1; done
slurmctld -D >/dev/null 2>&1 & daemons+=($!)
slurmd -D -N "$(hostname)" >/dev/null 2>&1 & daemons+=($!)
for _ in $(seq 100); do sinfo -h -o %T 2>/dev/null | grep -q idle && break; sleep 0.3; done
sinfo -h -o %T | grep -q idle || { tail -20 "$root"/*.log >&2; echo "slurm.sh: the node does not come up" >&2; exit 1; }

python3 - "$root/requests.jsonl" <<'PYTHON'
import json, sys
with open(sys.argv[1], "w", encoding="utf-8") as out:
    for i in range(24):
        body = {"model": "smollm2", "prompt": f"Chapter {i}. It was", "max_tokens": 96, "temperature": 0.8, "seed": i}
        line = {"custom_id": f"chapter-{i}", "method": "POST", "url": "/v1/completions", "body": body}
        out.write(json.dumps(line) + "\n")
PYTHON

cat >"$root/job.sh" <<JOB
#!/bin/sh
exec "$program" batch -m "$model" -i "$root/requests.jsonl" -o "$root/out.jsonl" --shard auto --ignore-eos -t 1 -q
JOB
echo "== An array of four tasks; task 0 is killed and requeued"
job=$(sbatch --parsable --array=0-3 --requeue --chdir="$root" --output="$root/task-%a.txt" "$root/job.sh")
part=$root/out.jsonl.part-0-of-4
for _ in $(seq 300); do [ -s "$part" ] && break; sleep 0.1; done
answered=$(wc -l <"$part")
scontrol requeue "${job}_0"
echo "requeued after $answered answers"
for _ in $(seq 600); do [ -z "$(squeue -h -j "$job" 2>/dev/null)" ] && break; sleep 0.5; done
[ -z "$(squeue -h -j "$job" 2>/dev/null)" ] || { squeue >&2; cat "$root"/task-*.txt >&2; exit 1; }

"$program" batch merge -i "$root/requests.jsonl" -o "$root/out.jsonl"
"$program" batch -m "$model" -i "$root/requests.jsonl" -o "$root/single.jsonl" --ignore-eos -t 2 -q --in-order
python3 - "$root/out.jsonl" "$root/single.jsonl" "$answered" "$part" <<'PYTHON'
import json, sys

def lines(path):
    out = []
    for line in open(path, encoding="utf-8"):
        line = json.loads(line)
        for name in "created", "timings":
            del line["response"]["body"][name]
        out.append(json.dumps(line))
    return out

merged, single = lines(sys.argv[1]), lines(sys.argv[2])
assert merged == single, "the joined results differ from those of a single run"
of_task = sum(1 for _ in open(sys.argv[4], encoding="utf-8"))
assert 0 < int(sys.argv[3]) < of_task, f"task 0 was not killed in the middle: {sys.argv[3]} of {of_task} answers"
print(f"slurm.sh: {len(merged)} answers of four tasks, one requeued, are those of a single run")
PYTHON
