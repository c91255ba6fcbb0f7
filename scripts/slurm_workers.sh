#!/usr/bin/env bash
# Workers of a campaign as an array of SLURM jobs:
#
#     sbatch --array=1-20 scripts/slurm_workers.sh NAME [KEY=VALUE ...]
#
# The words are those of python -m rmsexp.campaign; results must be in a folder that the nodes share. Each worker takes
# the next run that is free, until none is left. Options of sbatch replace those below, as --time=12:00:00 does.
# Before its time is over, SLURM sends USR2 to this shell: the worker saves its run, and the job is queued again. When a
# job is pre-empted, SLURM sends TERM: the worker saves its run, and SLURM queues the job again, if it is set to requeue.
#SBATCH --job-name=rmsexp
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append

requeue=false stopping=false worker=
stop() {
  stopping=true
  [ -z "$worker" ] || kill -TERM "$worker" 2> /dev/null
}
trap 'requeue=true; stop' USR2
trap stop TERM

python -m rmsexp.campaign "$@" &
worker=$!
$stopping && stop # the signal came before this shell knew the worker's number
while # a signal ends "wait" before the worker has saved its run
  wait "$worker"
  kill -0 "$worker" 2> /dev/null
do :; done
wait "$worker"
status=$?
if $requeue && [ "$status" -ne 0 ]; then
  exec scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
fi
exit "$status"
