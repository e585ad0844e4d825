# One image for every role: `docker compose up --build`, or `docker run IMAGE streamserve worker CONFIG --pool NAME`.
# It holds streamserve with its extras, the examples and their trained models; Kafka runs in an image of its own.

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENS[E] ./
COPY streamserve ./streamserve
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
# OpenMP's runtime: the wheels of some model libraries take it from the system, and the slim image lacks it.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /wheels/*.whl)[sklearn,onnx,learn,plan,insights]" && rm -r /wheels

RUN useradd --create-home --uid 10001 streamserve \
    && install --directory --owner streamserve /app /var/cache/streamserve /var/lib/streamserve
ENV STREAMSERVE_CACHE=/var/cache/streamserve \
    STREAMSERVE_STATE=/var/lib/streamserve \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER streamserve
COPY --chown=streamserve workers ./workers
COPY --chown=streamserve examples ./examples
# Once, at build time: the example models, so that a container serves at once and needs no registry.
RUN python -m workers.train

CMD ["streamserve", "--help"]
