#!/bin/bash
# ScaleRL on several nodes under Slurm: the same command on each, which finds its place by itself.
#
#   sbatch --nodes 4 --gpus-per-node 8 configs/slurm.sh --model Qwen/Qwen3-8B --task polaris-53k
#
# Trainers are on the first nodes, vLLM servers on the rest (add --dry-run to see who and why). The
# nodes speak mutual TLS: once, for all nodes that a job may get, on a file system they share,
#
#   make certs HOSTS=$(scontrol show hostnames node[01-64] | paste -sd,)
#
# Ten minutes before its time is over the job gets a SIGTERM and writes a checkpoint; the same
# command with --resume goes on from there, or, had it no time for one, from the last
# (--eval-every STEPS). This script has not been run on a Slurm cluster.
#SBATCH --job-name scalerl
#SBATCH --ntasks-per-node 1
#SBATCH --exclusive
#SBATCH --mem 0
#SBATCH --time 24:00:00
#SBATCH --signal TERM@600
#SBATCH --output scalerl-%j.log

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)

# One launcher a node. If one fails, the others end by themselves, after a checkpoint, which Slurm
# would not wait for: hence 0, whatever the cluster's default. It may use all of its node's cores.
# Single quotes: each node's own rank.
srun --kill-on-bad-exit=0 --cpu-bind=none bash -c \
    'exec .venv/bin/python scalerl.py --gpus "$SLURM_GPUS_ON_NODE" --tls certs "$@" \
        --hosts '"$hosts"' --node-rank "$SLURM_NODEID"' scalerl "$@"
