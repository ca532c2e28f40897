# Shared by the jobs of this folder; they are submitted from the checkout, after `make setup`.
set -euo pipefail
export HEADRACE_HOME=${HEADRACE_HOME:-$SLURM_SUBMIT_DIR}
export HEADRACE_DATA=${HEADRACE_DATA:-$HEADRACE_HOME/headrace-data}
export GATEWAY_PORT=${GATEWAY_PORT:-8000} REDIS_PORT=${REDIS_PORT:-6379} MASTER_PORT=${MASTER_PORT:-29500}
# `make setup` has put it there.
export PATH=$HEADRACE_HOME/.venv/bin:$PATH
SERVICE=$HEADRACE_DATA/slurm-service

python -c 'import redis, services' 2>/dev/null || {
    echo "error: $HEADRACE_HOME/.venv has no Headrace: run \`make setup\` there, or set HEADRACE_HOME" >&2
    exit 2
}
# Secrets are in the data folder, readable by its owner only, and in no process list.
umask 077
mkdir -p "$HEADRACE_DATA/redis" "$HEADRACE_DATA/logs"
export HEADRACE_REDIS_PASSWORD_FILE=$HEADRACE_DATA/redis/password

# address NODE: the address by which other nodes reach it.
address() { scontrol --oneliner show node "$1" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p'; }

# SIGTERM is Slurm's notice: the time limit is near (--signal), or a job of higher priority needs the node. The job
# stops in order and is requeued. SIGINT stops it in order for good: `scancel --batch --signal=INT JOB`.
told=
trap 'told=TERM; stop_parts' TERM
trap 'told=INT; stop_parts' INT
stop_parts() { kill -TERM $(jobs -p) 2>/dev/null || true; }
# A plain scancel sends SIGTERM, too, to a job that is then no longer running.
requeued() {
    [ "$told" != TERM ] || [ "$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID")" != RUNNING ] ||
        scontrol requeue "$SLURM_JOB_ID"
}

# waited PID: waits until the process ends, though signals interrupt `wait`.
waited() { until wait "$1" || ! kill -0 "$1" 2>/dev/null; do :; done; }

# keep NAME COMMAND...: runs the command again whenever it dies, until SIGTERM. Run it in the background.
keep() {
    local name=$1 pause=1 child= stop= began
    shift
    trap 'stop=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM
    trap '' INT
    while [ -z "$stop" ]; do
        began=$SECONDS
        "$@" >>"$HEADRACE_DATA/logs/$name.log" 2>&1 &
        child=$!
        waited "$child"
        [ -z "$stop" ] || break
        ((SECONDS - began <= 60)) || pause=1
        echo "$name on ${SLURMD_NODENAME:-} ended; it is started again in $pause s"
        sleep "$pause" &
        child=$!
        wait "$child" || true
        pause=$((pause < 16 ? pause * 2 : 30))
    done
}

# use_service: waits for the service's Redis, wherever that job runs now.
use_service() {
    until [ -n "$told" ] || { [ -s "$SERVICE" ] && . "$SERVICE" && answers; }; do sleep 1; done
}
answers() {
    python - <<'EOF'
import redis, sys
from services.settings import Settings
try:
    redis.Redis.from_url(Settings().redis_url.get_secret_value(), socket_timeout=2).ping()
except redis.RedisError:
    sys.exit(1)
EOF
}
