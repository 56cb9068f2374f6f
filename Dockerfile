# Flyball in a container: one binary, an unprivileged user. docker-compose.yml has the complete
# setup.

FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY . .
# More features, such as mongodb: docker build --build-arg FEATURES=mongodb .
ARG FEATURES=""
# The caches shorten a second build; the binary is copied out because a cache is not part of a
# layer.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --profile dist --bin flyball --features "$FEATURES" \
    && cp target/dist/flyball /usr/local/bin/flyball

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /var/lib/flyball --create-home flyball
COPY --from=build /usr/local/bin/flyball /usr/local/bin/flyball
COPY knobs /etc/flyball/knobs
USER flyball
WORKDIR /var/lib/flyball
ENV FLYBALL_LISTEN=0.0.0.0:8080 \
    FLYBALL_KNOBS_DIR=/etc/flyball/knobs
EXPOSE 8080
# SIGTERM drains: running jobs are finished or handed back before the process ends.
STOPSIGNAL SIGTERM
# A process without the role api answers at FLYBALL_METRICS_LISTEN alone.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["sh", "-c", "at=${FLYBALL_METRICS_LISTEN:-$FLYBALL_LISTEN}; exec curl --fail --silent --output /dev/null http://127.0.0.1:${at##*:}/healthz"]
ENTRYPOINT ["flyball"]
CMD ["serve"]
