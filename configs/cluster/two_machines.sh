#!/bin/bash
# ScaleRL on two machines, rented for example, without a cluster's scheduler: the vLLM servers on
# one, on the other one trainer rank for each GPU, started by torchrun. Here 10.0.0.2 generates.
# Whoever reaches its ports can change the weights: between the machines a private network, or a VPN
# as WireGuard. With the same settings, on the first and on the second machine:
#
#   configs/cluster/two_machines.sh serve 10.0.0.2 two --model Qwen/Qwen3-8B --task gsm8k \
#       --recompute-layers true
#   configs/cluster/two_machines.sh train 10.0.0.2 two (the same settings)
#
# Ranks that torchrun or Slurm starts plan nothing by themselves: without --recompute-layers an 8B
# model's activations need more than 80 GB at the default lengths.
# The servers' addresses are in runs/two/servers_10.0.0.2.txt. Where the machines share no folder,
# copy that file when it is there: the trainers wait for it; delete the copy before you start the
# servers again, which then listen elsewhere. Ctrl-C ends either side; the trainers
# have a checkpoint to write, for which torchrun leaves them 30 s; the same command goes on from it.
#
# More machines may generate: name them all, as 10.0.0.2,10.0.0.3, in `train`. More may train: give
# each TORCHRUN="--nnodes 2 --node-rank 0 (or 1) --master-addr 10.0.0.1", and a folder runs/ that
# all of them see. Left alone, gloo takes the network that a machine's own name leads to, and NCCL
# any but loopback's and Docker's: so both are told the interface that leads to the generator here
# (if it is an IP address), unless GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME is set. A firewall
# between the machines must let all ports through, both ways: servers listen on free ones from 10000
# to 32767, and NCCL's first connection comes back from them to any port of the trainers' machine.
# Tried on CPUs (with --gpus 0, in the tests), not on GPUs.

side=$1 generators=$2 name=$3
shift 3
python=${PYTHON:-.venv/bin/python}
words=("$@" --name "$name")
first=${generators%%,*}
interface=$({ ip -o addr show to "$first" || true; ip -o route get "$first"; } 2> /dev/null |
    sed -En 's/.* dev (\S+).*|^[0-9]+: (\S+) .*/\1\2/p' | head -n 1)      # none where `ip` is missing
if [ -n "$interface" ] && [ "$interface" != lo ]; then
    export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$interface}
    export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-=$interface}
fi

if [ "$side" = serve ]; then
    exec "$python" scalerl.py "${words[@]}" --serve-only "$generators"
fi
gpus=$(nvidia-smi -L 2> /dev/null | wc -l)              # torchrun would give each rank one thread
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(($(nproc) / (gpus > 0 ? gpus : 1)))}
files=$(printf ",@runs/$name/servers_%s.txt" ${generators//,/ })
exec "$python" -m torch.distributed.run --nproc-per-node gpu $TORCHRUN scalerl.py "${words[@]}" \
    --vllm-url "${files:1}"
