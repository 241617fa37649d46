#!/usr/bin/env bash
# Ranks 0 to 1 of 2, started one a device from a rank table, on localhost. Written by mslaunch;
# stands alone: run it as it is, or with PYTHON=/path/to/python in front. Output lands in $run/rank_<R>/log.txt.
set -u
run=$(cd "$(dirname "$0")/.." && pwd)
[ -n "${PYTHON:-}" ] && [ -z "${MSLAUNCH_AGENT:-}" ] || PYTHON=/opt/venv/bin/python

if [ -z "${MSLAUNCH_AGENT:-}" ]; then  # started by hand: mslaunch itself would have set all this
  # Variables that another launcher may have left in the shell.
  unset MS_ROLE MS_SCHED_HOST MS_SCHED_PORT MS_WORKER_NUM MS_SERVER_NUM MS_NODE_ID MS_WORKER_IP RANK_ID RANK_SIZE RANK_TABLE_FILE MINDSPORE_HCCL_CONFIG_PATH DEVICE_ID DEVICE_NUM SERVER_ID RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT
  for name in $(compgen -e OMPI_COMM_WORLD_) $(compgen -e MSLAUNCH_); do unset "$name"; done

  export MSLAUNCH_RUN_DIR=$run
  [ -n "${MS_RETRY_INTERVAL_LOWER:-}" ] || MS_RETRY_INTERVAL_LOWER=1
  export MS_RETRY_INTERVAL_LOWER
  [ -n "${MS_RETRY_INTERVAL_UPPER:-}" ] || MS_RETRY_INTERVAL_UPPER=1
  export MS_RETRY_INTERVAL_UPPER
  [ -n "${MS_TOPO_TIMEOUT:-}" ] || MS_TOPO_TIMEOUT=600
  export MS_TOPO_TIMEOUT
  [ -n "${PYTHONUNBUFFERED:-}" ] || PYTHONUNBUFFERED=1
  export PYTHONUNBUFFERED
  export RANK_SIZE=2
  export WORLD_SIZE=2
  export MASTER_ADDR=127.0.0.1
  export MASTER_PORT=8119
  export MSLAUNCH_RUN_ID=r1
  export MSLAUNCH_ATTEMPT=0
  export MSLAUNCH_CONFIG="$run"/config.json
  export MSLAUNCH_SUBMIT_DIR='/home/u/my job'
  export MSLAUNCH_JOB_DIR='/home/u/my job'
  export MSLAUNCH_CWD=rank
  export MSLAUNCH_SECRETS=TOKEN
  export RANK_TABLE_FILE="$run"/scripts/rank_table.json
  export A='it'"'"'s b'
  export MS_SCHED_HOST=127.0.0.1
  export MS_SCHED_PORT=8118
  export MS_WORKER_NUM=2
  : "${TOKEN:?export TOKEN first: its value is not kept in this file}"
fi
export MSLAUNCH_RANKS=$run/scripts/ranks.json

# On a CPU, MindSpore's init() needs its scheduler.
MS_ROLE=MS_SCHED RANK_ID=0 GLOG_v=2 "$PYTHON" "$run/mslaunch_rank.py" &
scheduler=$!
trap 'kill "$scheduler" 2>/dev/null' EXIT

devices=(0 1)
first=0
pids=()

cd "$run"
for i in "${!devices[@]}"; do
  RANK_ID=$((first + i)) DEVICE_ID=${devices[$i]} \
    "$PYTHON" "$run/mslaunch_rank.py" "$run"/code/train.py --config_path="$run"/config.yaml --lr 0.1 --data /home/u/d &
  pids+=($!)
done

# The first rank that fails ends the others, and its code is the script's own. Bash complains of ranks that have ended.
for _ in "${pids[@]}"; do
  wait -n "${pids[@]}" 2>/dev/null || { code=$?; kill "${pids[@]}" 2>/dev/null; wait "${pids[@]}"; exit "$code"; }
done
