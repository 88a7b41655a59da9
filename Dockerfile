# The project on a machine without a GPU: docker build -t scalerl . && docker run --rm -it scalerl
# With files of your own, and what the run leaves:
#   docker run --rm -it -v ./runs:/scalerl/runs scalerl make demo
FROM python:3.11-slim
# make and a compiler; git for the versions that a run writes down. Docker's default profile denies
# namespaces, so programs run behind Landlock there, and bubblewrap would not help.
RUN apt-get update && apt-get install -y --no-install-recommends make gcc g++ git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /scalerl
COPY . .
# The build of torch for CPUs: without this line its CUDA build comes, gigabytes more.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN make .venv/base
CMD ["make", "demo"]
