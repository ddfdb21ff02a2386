# tx in a container, its extras included; folders of the host are mounted at /data.
#
#   docker build -t tx .
#   docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD:/data" tx train -c tiny.yaml
#
#   docker build -t tx-cuda --build-arg TORCH=cuda .
#   docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD:/data" --gpus all --ipc host tx-cuda train -c base.yaml
#
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data:ro" -p 127.0.0.1:8000:8000 tx serve --host 0.0.0.0 \
#       --set serving.allowed_hosts='[localhost]'
#
# CUDA comes with PyTorch: the host needs NVIDIA's driver and its container toolkit, nothing else.
FROM python:3.13-slim

# cpu or cuda: which build of PyTorch.
ARG TORCH=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /tx
COPY scripts/constraints.txt scripts/
RUN if [ "$TORCH" = cpu ]; then index="--index-url https://download.pytorch.org/whl/cpu"; fi \
    && pip install --no-deps $index -c scripts/constraints.txt torch
COPY . .
RUN pip install -c scripts/constraints.txt hatchling \
    && pip install --no-build-isolation -c scripts/constraints.txt ".[ctranslate2,hugging-face,onnx,serve,tensorboard]"

# Whoever runs it may have no home, and writes to /data alone.
ENV HOME=/tmp
WORKDIR /data
ENTRYPOINT ["tx"]
CMD ["--help"]
