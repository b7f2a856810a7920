# syntax=docker/dockerfile:1
# The wheel is copied, not the tree: /operator would be a folder with the name of a standard-library module.

FROM python:3.12-slim AS build
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
# Compiled here: the image runs without the right to write, and would compile at every start.
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1
# Dependencies first, from the lock file: a change of the code does not download them again.
COPY pyproject.toml uv.lock ./
RUN uv export --frozen --no-dev --no-emit-project --output-file requirements.txt \
    && uv venv /opt/vllm-autotuner \
    && uv pip install --python /opt/vllm-autotuner --require-hashes --requirement requirements.txt
COPY README.md LICENSE ./
COPY operator ./operator
RUN uv build --wheel --out-dir /dist \
    && uv pip install --python /opt/vllm-autotuner --no-deps /dist/*.whl

FROM python:3.12-slim AS runtime
COPY --from=build /opt/vllm-autotuner /opt/vllm-autotuner
# PYTHONSAFEPATH: no module is ever imported from the working directory.
ENV PATH=/opt/vllm-autotuner/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /
USER 65532:65532

# A stand-in for vLLM without a GPU, with the same command line and metrics: for trying the operator in a cluster.
#     docker build --target engine -t vllm-autotuner-engine .
FROM runtime AS engine
EXPOSE 8000
ENTRYPOINT ["python", "-m", "vllm_autotuner.simulation.server", "serve"]

# The last stage is what `docker build` makes when it is asked for none.
FROM runtime AS operator
EXPOSE 8080
ENTRYPOINT ["vllm-autotuner"]
CMD ["run"]
