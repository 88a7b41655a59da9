#!/bin/bash
# ScaleRL on several nodes under Slurm: vLLM servers on the last nodes, on the others one trainer
# rank for each GPU. The job's name is the run's.
#
#   sbatch --nodes 4 --gpus-per-node 8 --job-name big configs/cluster/slurm.sh \
#       --model Qwen/Qwen3-8B --task polaris-53k --recompute-layers true
#
# GENERATE=3 in the environment lets three of the nodes generate, instead of half of them. Whoever
# reaches the nodes' ports can change the weights: private networks only.
#
# Ten minutes before its time is over every process of the job gets a SIGTERM: rank 0 writes a
# checkpoint and ends with status 75, and the job queues up again: the same command goes on from the
# newest checkpoint. This script has not been run on a Slurm cluster.
#SBATCH --exclusive
#SBATCH --mem 0
#SBATCH --time 24:00:00
#SBATCH --signal TERM@600
#SBATCH --requeue
#SBATCH --open-mode append
#SBATCH --output scalerl-%j.log

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
train=$((${#nodes[@]} - ${GENERATE:-$((${#nodes[@]} / 2))}))
words=("$@" --name "$SLURM_JOB_NAME" --gpus "$SLURM_GPUS_ON_NODE")
rm -f "runs/$SLURM_JOB_NAME"/servers_*.txt          # of a job that was killed

# The servers, each node's with all of its cores. Their addresses come in a file for each node. By
# the node's IP address, as this one sees it: on a node itself its name is often 127.0.1.1.
for node in "${nodes[@]:train}"; do
    address=$(getent ahostsv4 "$node" | awk '{print $1; exit}')
    address=${address:-$node}
    srun --nodes=1 --ntasks=1 --nodelist="$node" --cpu-bind=none \
        .venv/bin/python scalerl.py "${words[@]}" --serve-only "$address" &
    files+=",@runs/$SLURM_JOB_NAME/servers_$address.txt"
done

# The trainers: the environment of torchrun, from Slurm's. Single quotes: each task's own ranks.
export MASTER_ADDR=${nodes[0]} MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export WORLD_SIZE=$((train * SLURM_GPUS_ON_NODE))
export OMP_NUM_THREADS=$((SLURM_CPUS_ON_NODE / SLURM_GPUS_ON_NODE))
# If one fails, the others end by themselves and say whose error it was, which Slurm would not wait
# for: hence 0, whatever the cluster's default.
srun --nodes="$train" --ntasks="$WORLD_SIZE" --nodelist="$(IFS=,; echo "${nodes[*]:0:train}")" \
    --cpu-bind=none --kill-on-bad-exit=0 bash -c \
    'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec .venv/bin/python scalerl.py "$@"' \
    scalerl "${words[@]}" --vllm-url "${files:1}" &
wait $!
status=$?
kill $(jobs -p) 2> /dev/null                        # the servers, which nobody needs any more
wait
[ $status = 75 ] && scontrol requeue "$SLURM_JOB_ID"
exit $status
