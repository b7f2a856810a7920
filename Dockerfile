# syntax=docker/dockerfile:1
# The wheel is copied, not the tree: /operator would be a folder with the name of a standard-library module.

FROM python:3.12-slim AS build
RUN pip install --no-cache-dir uv==0.13.8
WORKDIR /src
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
# Dependencies first, from the lock file: a change of the code does not download them again.
COPY pyproject.toml uv.lock ./
RUN uv export --frozen --no-dev --no-emit-project --output-file requirements.txt \
    && uv venv /opt/vllm-autotuner \
    && uv pip install --python /opt/vllm-autotuner --require-hashes --requirement requirements.txt
COPY README.md LICENSE ./
COPY operator ./operator
RUN uv build --wheel --out-dir /dist \
    && uv pip install --python /opt/vllm-autotuner --no-deps /dist/*.whl

FROM python:3.12-slim
COPY --from=build /opt/vllm-autotuner /opt/vllm-autotuner
# PYTHONSAFEPATH: no module is ever imported from the working directory.
ENV PATH=/opt/vllm-autotuner/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["vllm-autotuner"]
CMD ["run"]
