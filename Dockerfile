# tx in a container, its extras included; folders of the host are mounted at /work.
#
#   docker build -t tx .
#   docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD:/work" tx train -c tiny.yaml
#
#   docker build -t tx-cuda --build-arg TORCH=cuda .
#   docker run --rm -it --user "$(id -u):$(id -g)" -v "$PWD:/work" --gpus all --ipc host tx-cuda train -c base.yaml
#
#   docker run --rm -v "$PWD:/work:ro" -p 127.0.0.1:8000:8000 tx serve --host 0.0.0.0
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
    && pip install --no-build-isolation -c scripts/constraints.txt ".[ctranslate2,hugging-face,onnx,serve]"

# Whoever runs it may have no home, and writes to /work alone.
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["tx"]
CMD ["--help"]
